"""`meadow new`: what it makes runs as it is."""

from __future__ import annotations

from pathlib import Path

from .conftest import Meadow


def test_a_new_app_learns(meadow: Meadow, app: Path) -> None:
    """Without a change, ten rounds get most of the held-out samples right."""
    said = meadow("simulate", "my_app", "--out", "run", "--format", "json")
    assert said.code == 0
    (summary,) = said.events("summary")
    assert (summary["status"], summary["rounds"]) == ("finished", 10)
    assert summary["final"]["server"]["accuracy"] > 0.9


def test_programs_hear_what_was_made(meadow: Meadow, tmp_path: Path) -> None:
    """The folder and its files, as one object."""
    folder = tmp_path / "deep" / "app"
    (made,) = meadow("new", folder, "--format", "json").objects
    assert made["folder"] == str(folder)
    assert {path.name for path in folder.iterdir()} == set(made["files"])
