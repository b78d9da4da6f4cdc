"""Runs the command line in this process, and a small app to run it on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meadow.cli.main import main


@dataclass(frozen=True, slots=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The lines of JSON on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [each for each in self.objects if each.get("event") == kind]


Meadow = Callable[..., Said]


@pytest.fixture
def meadow(capfd: pytest.CaptureFixture[str]) -> Meadow:
    """`meadow("new", "my_app")` is the command `meadow new my_app`."""

    def run(*arguments: object) -> Said:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, out, err)

    return run


@pytest.fixture
def app(meadow: Meadow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new app, in the folder that commands are called from."""
    monkeypatch.chdir(tmp_path)
    assert meadow("new", "my_app").code == 0
    return tmp_path / "my_app"


@pytest.fixture
def sequential_app(app: Path) -> Path:
    """The same, its clients always run one after another: for tests of bits, or of the output."""
    path = app / "meadow.toml"
    path.write_text(
        path.read_text().replace("[simulation]", '[simulation]\nexecutor = "sequential"')
    )
    return app
