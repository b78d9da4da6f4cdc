"""How runs end: whatever their tasks, the journal and the disk do."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meadow.errors import DamageError, StoreError
from meadow.server.daemon import supervisor as module
from meadow.server.daemon import threads
from meadow.server.daemon.agent_registry import AgentRegistry
from meadow.server.daemon.dispatch import Dispatcher
from meadow.server.daemon.spool import Spool
from meadow.server.daemon.supervisor import Supervisor
from meadow.server.daemon.threads import JournalThread
from meadow.server.journal.journal import Journal

Outcome = tuple[str, str] | Exception


@dataclass
class House:
    """A supervisor of one run, whose worker ends as the test says."""

    journal: Journal
    supervisor: Supervisor
    run_id: int
    full: bool = False

    def status(self) -> tuple[str, str]:
        """Return the run's status and cause."""
        run = self.journal.runs.get(self.run_id)
        assert run is not None
        return run.status, run.cause

    async def end(self, outcome: Outcome) -> None:
        """Let the run's worker end."""

        async def keep_alive(run_id: int) -> tuple[str, str]:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        self.supervisor._keep_alive = keep_alive  # type: ignore[method-assign]
        self.supervisor.begin(self.run_id)

    async def over(self) -> None:
        """Wait until nobody looks after the run any more."""
        while self.run_id in self.supervisor._tasks:
            await asyncio.sleep(0.001)


class Disk:
    """The journal's connection on a disk that can be full."""

    def __init__(self, house: House, inner: sqlite3.Connection) -> None:
        self._house, self._inner = house, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, sql: str, *values: Any) -> Any:
        """As SQLite's, but for the end of a transaction while the disk is full."""
        if self._house.full and sql == "COMMIT":
            raise sqlite3.OperationalError("database or disk is full")
        return self._inner.execute(sql, *values)


def in_a_house(folder: Path, scenario: Callable[[House], Awaitable[None]]) -> None:
    """Run a scenario with one run under way."""

    async def main() -> None:
        journal = Journal(folder / "journal.sqlite")
        thread = JournalThread(journal)
        links = AgentRegistry([], lease_s=60.0, clock=lambda: 0.0)
        spool = Spool(folder / "spool", blob_bytes_max=1 << 20)
        dispatcher = Dispatcher(journal, thread, spool, links, lease_s=60.0, clock=lambda: 0.0)
        supervisor = Supervisor(
            folder, journal, thread, dispatcher, links, spool, clock=lambda: 0.0
        )
        run_id = journal.runs.submit("app", "sha", "[]", now_s=0.0)
        journal.runs.status(run_id, "running")
        supervisor.run_dir(run_id).mkdir(parents=True)
        house = House(journal, supervisor, run_id)
        journal._db._db = Disk(house, journal._db._db)  # type: ignore[assignment]
        await scenario(house)
        await supervisor.close()
        thread.close()
        journal.close()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon."""
    monkeypatch.setattr(threads, "RETRY_S", 0.001)
    monkeypatch.setattr(module, "STOP_WAIT_S", 0.05)


@pytest.mark.parametrize(
    ("outcome", "status", "cause"),
    [
        (("finished", ""), "finished", ""),
        (StoreError("no room in the spool"), "failed", "no room in the spool"),
        (OSError(28, "No space left on device"), "failed", "No space left on device"),
        (DamageError("a row"), "failed", "a row; `meadow run resume 1` repeats the round"),
        (RuntimeError("a bug"), "failed", "internal error: RuntimeError: a bug"),
    ],
)
def test_an_end_on_a_full_disk_is_written_when_there_is_room(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    outcome: Outcome,
    status: str,
    cause: str,
) -> None:
    """Until then nobody is told that the run goes on, or that it was stopped; the log says why."""

    async def scenario(house: House) -> None:
        house.full = True
        await house.end(outcome)
        while "database or disk is full; the server waits" not in caplog.text:
            await asyncio.sleep(0.001)
        assert house.status() == ("running", "")
        said = rf"run 1 has {status}, but the server cannot record that: its disk is full"
        with pytest.raises(StoreError, match=said):
            await house.supervisor.stop(house.run_id)
        assert "cannot record that" in (house.supervisor.ending(house.run_id) or "")
        house.full = False
        await house.over()
        assert house.status()[0] == status and cause in house.status()[1]
        assert house.supervisor.ending(house.run_id) is None
        summary = json.loads((house.supervisor.run_dir(1) / "summary.json").read_text())
        assert summary["status"] == status
        assert house.journal.runs.requeue(house.run_id) == (status == "failed")

    in_a_house(tmp_path, scenario)


def test_a_summary_that_finds_no_room_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the runs may be another than the journal's."""
    refusals = 3
    write = module.write_file

    def full(path: Path, data: bytes) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise StoreError("No space left on device")
        write(path, data)

    monkeypatch.setattr(module, "write_file", full)

    async def scenario(house: House) -> None:
        await house.end(("failed", "too few clients"))
        await house.over()
        assert house.status() == ("failed", "too few clients") and refusals < 0

    in_a_house(tmp_path, scenario)


def test_a_run_that_nobody_looks_after_can_be_stopped(tmp_path: Path) -> None:
    """It is stopped then, and not only said to be."""

    async def scenario(house: House) -> None:
        await house.supervisor.stop(house.run_id)
        assert house.status()[0] == "stopped"

    in_a_house(tmp_path, scenario)


def test_a_damaged_run_ends_and_others_go_on(tmp_path: Path) -> None:
    """Its steps cannot be taken up after a restart: it fails with that cause, by itself."""

    async def scenario(house: House) -> None:
        other = house.journal.runs.submit("app", "sha", "[]", now_s=0.0)
        house.journal.runs.status(other, "running")
        for run in (house.run_id, other):
            house.journal.steps.open(
                run, "1/train/0", "1", quorum=1, deadline_s=1.0, instructions=[(f"i{run}", 1, b"")]
            )
        db = house.journal._db._db
        db.execute("UPDATE seals SET crc32 = 7 WHERE part = 'instructions' AND row = 'i1'")
        assert await house.supervisor.restore() == [house.run_id, other]
        house.supervisor.begin(house.run_id)
        await house.over()
        status, cause = house.status()
        assert status == "failed" and "the row 'i1' of instructions is not as it was" in cause
        row = house.journal.runs.get(other)
        assert row is not None and row.status == "running"
        assert house.journal.steps.instructions(house.run_id, "1/train/0") == []

    in_a_house(tmp_path, scenario)
