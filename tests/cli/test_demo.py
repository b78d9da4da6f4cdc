"""`meadow demo`: a whole federation, and nothing of it left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meadow.cli.demo import EXAMPLES, _clear, _ending_well, _first_event
from meadow.errors import ConfigError, MeadowError
from meadow.simulations.run import simulate

from .conftest import Meadow

LAST_WORDS = {"server": "stopped", "site-0": "stopped", "site-1": "stopped"}


@pytest.mark.fleet
def test_the_demo_gives_the_model_of_the_simulation(meadow: Meadow, tmp_path: Path) -> None:
    """Server and agents as processes, over mutual TLS: the same bytes as in one process."""
    pytest.importorskip("mlxtend")
    out = tmp_path / "demo"
    said = meadow("demo", "--clients", 2, "--rounds", 2, "--out", out, "--format", "json")
    assert said.code == 0, said.err
    kinds = [each["event"] for each in said.objects]
    assert kinds[:4] == ["server_starting", "server", "client", "client"]
    assert kinds.count("round_committed") == 2 and kinds[-1] == "done"
    (done,) = said.events("done")
    assert done["summary"] == json.loads((out / "summary.json").read_text())
    assert done["summary"]["final"]["server"]["accuracy"] > 0.85
    settings = ["run.min_clients=2", "simulation.clients=2", "run.rounds=2"]
    alone = tmp_path / "simulation"
    simulate(EXAMPLES / "mnist", overrides=settings, out=alone, executor="sequential")
    model = (out / "model.safetensors").read_bytes()
    assert model == (alone / "model.safetensors").read_bytes()
    for name, word in LAST_WORDS.items():
        last = (out / f"{name}.log").read_text().splitlines()[-1]
        assert json.loads(last)["event"] == word, name


def process_saying(code: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen([sys.executable, "-c", code], stdout=file, stderr=file)


def test_the_first_event_is_found_among_other_lines(tmp_path: Path) -> None:
    """Warnings, other events and a line that is written in two pieces do not confuse it."""
    code = """
import sys, os
os.write(1, b'a warning\\n[1, 2]\\n{"event": "other"}\\n{"event": "liste')
os.write(1, b'ning", "fleet": "localhost:1"}\\n')
"""
    process = process_saying(code, tmp_path / "log")
    assert _first_event(process, tmp_path / "log", "listening")["fleet"] == "localhost:1"
    process.wait()


def test_a_process_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    """One line, and where there is more."""
    process = process_saying("raise SystemExit('no port is free')", tmp_path / "log")
    with pytest.raises(MeadowError, match=r"it said 'no port is free'; see .*/log$"):
        _first_event(process, tmp_path / "log", "listening")


def test_only_a_demo_is_emptied(tmp_path: Path) -> None:
    """A folder with a server or anything else in it is not touched."""
    _clear(tmp_path / "new")
    (tmp_path / "new" / "model.safetensors").touch()
    _clear(tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".meadow-demo"]
    (tmp_path / "mine" / "server").mkdir(parents=True)
    with pytest.raises(ConfigError, match="is not empty and no demo's folder"):
        _clear(tmp_path / "mine")
    assert (tmp_path / "mine" / "server").is_dir()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_demo_in_order(number: int) -> None:
    """SIGTERM and a closed terminal are as Ctrl-C: what was started is ended."""
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), _ending_well():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
