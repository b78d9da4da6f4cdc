"""A real federation from Python: submitted, followed and pulled, it is the simulation's model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import meadow
from meadow.errors import ConfigError, MeadowError, RunError

from .processes import federation
from .processes import meadow as command

pytestmark = pytest.mark.fleet

SETTINGS = {"run.rounds": 2, "run.min_clients": 2, "simulation.clients": 2}


def test_it_is_what_the_commands_do(tmp_path: Path) -> None:
    """Its sites, runs and events are tables; a run ends with the simulation's params, bit by bit;
    what the server refuses is its own sentence; a run that fails raises."""
    app = tmp_path / "app"
    command("new", str(app))
    folder = tmp_path / "fleet"
    folder.mkdir()
    with federation(folder, app, clients=2) as fleet:
        server = meadow.connect(fleet.server_dir)
        assert list(server.sites["name"]) == ["client-0", "client-1"]
        assert len(server.runs) == 0
        heard: list[str] = []

        def hear(kind: str, detail: Mapping[str, Any]) -> None:
            heard.append(kind)

        run = server.submit(app, SETTINGS).watch(on_event=hear)
        assert run.status == "finished" and heard.count("round_committed") == 2
        assert list(server.runs["id"]) == [run.number]
        assert "round_committed" in list(run.events["kind"])
        pulled = run.pull(tmp_path / "pulled")
        simulated = meadow.simulate(
            app, settings=SETTINGS, executor="sequential", out=tmp_path / "simulated"
        )
        for name, values in simulated.params().items():
            assert pulled.params()[name].tobytes() == values.tobytes()
        assert list(pulled.metrics["round"]) == [1, 2]
        with pytest.raises(ConfigError, match="is not empty"):
            run.pull(tmp_path / "pulled")
        with pytest.raises(MeadowError, match="there is no run 99"):
            server.run(99).stop()

        task = app / "task.py"
        task.write_text(task.read_text() + "\nraise ValueError('broken')\n")
        with pytest.raises(RunError, match="broken"):
            server.submit(app, SETTINGS).watch()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The sentence says which file an administrator needs."""
    with pytest.raises(ConfigError, match=r"no such file; the server's folder has an admin\.json"):
        meadow.connect(tmp_path / "admin.json")
