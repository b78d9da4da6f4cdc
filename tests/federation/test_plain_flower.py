"""A plain Flower app over gRPC: replayed from the journal after its worker was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from .processes import federation, kill_9, wait_until

pytestmark = pytest.mark.fleet

APP = Path(__file__).parents[2] / "examples" / "plain_flower"


def test_a_killed_worker_replays_the_app(tmp_path: Path) -> None:
    """The app runs through its recorded rounds again, and no client works or counts twice."""
    with federation(tmp_path, APP, clients=2) as fleet:
        run = fleet.submit("num-server-rounds=8")
        fleet.wait_for_round(run, 3)
        for pid in wait_until(fleet.workers, "a run worker"):
            kill_9(pid)
        summary = fleet.wait_for_end(run)
        assert summary["status"] == "finished", summary
        rows = fleet.rounds(run)
        assert [row["round"] for row in rows] == list(range(1, 9))
        assert [row["train"]["rounds-seen"] for row in rows] == list(range(1, 9))
