"""`meadow server prune`: what is shown, and that --dry-run deletes nothing."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from meadow.server.daemon.server_dir import ServerFolder
from meadow.server.journal.journal import Journal

from .conftest import Meadow


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A server with a run that has ended, and keeps nothing."""
    folder = tmp_path / "server"
    home = ServerFolder.create(folder, host="localhost", now=datetime.now(UTC))
    with (folder / "server.toml").open("a") as file:
        file.write("[storage]\nkeep_runs = 0\n")
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        run_id = journal.runs.submit("my_app", "x", "[]", now_s=0.0)
        journal.runs.status(run_id, "failed", now_s=1.0)
    (folder / "runs" / "1").mkdir()
    (folder / "runs" / "1" / "model.safetensors").write_bytes(b"x" * 100_000)
    return folder


def test_a_dry_run_and_a_real_one(meadow: Meadow, server: Path) -> None:
    """Both show the run and what it frees; only one deletes, and once."""

    def said(*options: str) -> str:
        found = meadow("server", "prune", "--dir", str(server), *options)
        assert found.code == 0, found.err
        return found.out

    model = server / "runs" / "1" / "model.safetensors"
    assert "would be freed" in said("--dry-run")
    (row,) = json.loads(said("--dry-run", "--format", "json"))
    assert (row["run"], row["app"], row["status"]) == (1, "my_app", "failed")
    assert row["size_bytes"] >= 100_000
    assert model.exists()
    assert "were freed" in said()
    assert not model.exists()
    assert "nothing is due" in said()


def test_a_link_is_a_failure(meadow: Meadow, server: Path, tmp_path: Path) -> None:
    """The exit code says that something was not pruned, and the line why."""
    (server / "runs" / "1").rename(tmp_path / "moved")
    (server / "runs" / "1").symlink_to(tmp_path / "moved")
    found = meadow("server", "prune", "--dir", str(server))
    assert found.code == 1
    assert "run 1 cannot be pruned" in found.out and "is a link, which is not followed" in found.out
    assert (tmp_path / "moved" / "model.safetensors").exists()
