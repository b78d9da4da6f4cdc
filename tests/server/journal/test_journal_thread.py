"""Calls that become durable together: each of them or none, whatever one of them does."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meadow.errors import StoreError
from meadow.server.daemon.threads import JournalThread
from meadow.server.journal.journal import Journal


class Desk:
    """A journal, its thread, and how often it was asked to make calls durable."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.sqlite"
        self.journal = Journal(self.path)
        self.batches = 0
        together = self.journal.together

        @contextmanager
        def counted() -> Iterator[None]:
            self.batches += 1
            with together():
                yield

        self.journal.together = counted  # type: ignore[method-assign]
        self.thread = JournalThread(self.journal)

    def record(self, kind: str) -> int:
        """Record an event."""
        return self.journal.events.record(1, kind, "{}", now_s=1.0)

    def kinds(self) -> list[str]:
        """Return what another process finds."""
        with sqlite3.connect(self.path) as db:
            return [kind for (kind,) in db.execute("SELECT kind FROM events ORDER BY id")]

    async def busy(self) -> tuple[asyncio.Future[bool], threading.Event]:
        """Keep the thread at work until an event is set."""
        begun, go = threading.Event(), threading.Event()

        def wait() -> bool:
            begun.set()
            return go.wait()

        first = asyncio.ensure_future(self.thread(wait))
        await asyncio.to_thread(begun.wait)
        return first, go

    async def while_busy(self, *calls: Callable[[], object]) -> list[object]:
        """Make calls while the thread is at work on another one."""
        first, go = await self.busy()
        waiting = [asyncio.ensure_future(self.thread(call)) for call in calls]
        await asyncio.sleep(0.05)
        go.set()
        await first
        return await asyncio.gather(*waiting, return_exceptions=True)


def at_a_desk(folder: Path, scenario: Callable[[Desk], Awaitable[None]]) -> None:
    """Run a scenario."""

    async def main() -> None:
        desk = Desk(folder)
        await scenario(desk)
        desk.thread.close()
        desk.journal.close()

    asyncio.run(main())


def test_calls_that_wait_become_durable_together(tmp_path: Path) -> None:
    """In their order, and with one wait for the disk."""

    async def scenario(desk: Desk) -> None:
        calls = [lambda kind=kind: desk.record(kind) for kind in "abcdef"]
        numbers = await desk.while_busy(*calls)
        assert numbers == sorted(numbers, key=int) and desk.kinds() == list("abcdef")  # type: ignore[call-overload]
        assert desk.batches == 2

    at_a_desk(tmp_path, scenario)


def test_a_call_that_fails_spoils_no_other(tmp_path: Path) -> None:
    """What it had begun is undone; what came before and after is there."""

    async def scenario(desk: Desk) -> None:
        def fails() -> None:
            with desk.journal.events._db.transaction():
                desk.record("never")
                raise ValueError("of its own")

        results = await desk.while_busy(lambda: desk.record("a"), fails, lambda: desk.record("b"))
        assert [type(result) for result in results] == [int, ValueError, int]
        assert desk.kinds() == ["a", "b"]

    at_a_desk(tmp_path, scenario)


def test_a_full_disk_fails_all_that_became_durable_together(tmp_path: Path) -> None:
    """Nobody is told that something is recorded which is not; with room again it goes on."""

    async def scenario(desk: Desk) -> None:
        await desk.thread(desk.record, "before")
        db = desk.journal.events._db
        (pages,) = db.rows("PRAGMA page_count")[0]
        db.rows(f"PRAGMA max_page_count = {pages}")
        long = "x" * 1_000_000
        results = await desk.while_busy(
            lambda: desk.record("a"), lambda: desk.record(long), lambda: desk.record("b")
        )
        failed = [isinstance(result, StoreError) for result in results]
        assert failed[1] and desk.kinds() == ["before"] + [
            kind for kind, error in zip("a-b", failed, strict=True) if not error
        ]
        db.rows("PRAGMA max_page_count = 1000000")
        await desk.thread(desk.record, "after")
        assert desk.kinds()[-1] == "after"

    at_a_desk(tmp_path, scenario)


def test_a_commit_that_fails_fails_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may say so only at the very end."""

    async def scenario(desk: Desk) -> None:
        db = desk.journal.events._db
        inner = db._db

        class Failing:
            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

            def execute(self, sql: str, *values: object) -> object:
                if sql == "COMMIT":
                    raise sqlite3.OperationalError("disk I/O error")
                return inner.execute(sql, *values)

        monkeypatch.setattr(db, "_db", Failing())
        results = await desk.while_busy(lambda: desk.record("a"), lambda: desk.record("b"))
        assert [type(result) for result in results] == [StoreError, StoreError]
        monkeypatch.setattr(db, "_db", inner)
        assert desk.kinds() == []
        await desk.thread(desk.record, "after")
        assert desk.kinds() == ["after"]

    at_a_desk(tmp_path, scenario)


def test_what_nobody_waits_for_any_more_is_done(tmp_path: Path) -> None:
    """A reply is recorded though its sender hung up meanwhile."""

    async def scenario(desk: Desk) -> None:
        first, go = await desk.busy()
        second = asyncio.ensure_future(desk.thread(desk.record, "a"))
        await asyncio.sleep(0.01)
        second.cancel()
        go.set()
        await first
        await desk.thread(lambda: None)
        assert desk.kinds() == ["a"]

    at_a_desk(tmp_path, scenario)
