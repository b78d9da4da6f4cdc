"""A site's index is its place among the sites of the run, whoever was enrolled or revoked before."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .processes import federation, kill_9, meadow, wait_until

pytestmark = pytest.mark.fleet

ADDED = """
def places(site):
    with open(site.config["seen"], "a") as file:
        file.write(f"{(site.index, site.count)}\\n")
    return load_client(site)

task = dataclasses.replace(task, client_data=places)
"""


def test_sites_come_and_go(tmp_path: Path) -> None:
    """Two sites are enrolled after one was revoked: the indices are 0 to 2 of 3, and stay so when
    a site is revoked and processes are killed in the middle of the run; the next run has its own."""
    app = tmp_path / "app"
    meadow("new", str(app))
    text = (app / "task.py").read_text()
    (app / "task.py").write_text(
        text.replace("import torch\n", "import dataclasses\nimport torch\n", 1) + ADDED
    )
    folder = tmp_path / "fleet"
    folder.mkdir()
    with federation(folder, app, clients=0) as fleet:

        def seen(index: int) -> set[tuple[int, int]]:
            lines = (tmp_path / f"seen-{index}").read_text().splitlines()
            return {ast.literal_eval(line) for line in lines}

        def start(index: int) -> None:
            fleet.enroll(index)
            text = f'[apps]\napp = "{app}"\n[data]\nseen = "{tmp_path}/seen-{index}"\n'
            (fleet.client_dir(index) / "client.toml").write_text(text)
            client = fleet.start_client(index)
            wait_until(lambda: client.events("connected"), "the client connects")

        where = ("--dir", str(fleet.server_dir))
        for index in range(2):
            start(index)
        meadow("site", "revoke", "client-1", *where)
        for index in (2, 3):
            start(index)
        run = fleet.submit("run.rounds=12", "run.min_clients=2")
        fleet.wait_for_round(run, 2)
        fleet.server.kill()
        for index in (2, 3):
            for pid in fleet.trainers(index):
                kill_9(pid)
        fleet.start_server()
        meadow("site", "revoke", "client-0", *where)
        summary = fleet.wait_for_end(run)
        assert (summary["status"], summary["rounds"]) == ("finished", 12), summary
        places = {0: (0, 3), 2: (1, 3), 3: (2, 3)}
        assert {index: seen(index) for index in places} == {i: {p} for i, p in places.items()}

        for index in (2, 3):
            (tmp_path / f"seen-{index}").unlink()
        again = fleet.submit("run.rounds=1", "run.min_clients=2")
        assert fleet.wait_for_end(again)["status"] == "finished"
        assert {index: seen(index) for index in (2, 3)} == {
            index: {(place, 2)} for place, index in enumerate((2, 3))
        }
