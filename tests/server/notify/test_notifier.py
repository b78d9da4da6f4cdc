"""The notifier: every event is told at least once, whatever is killed; no receiver holds up another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from meadow.server.journal.journal import Journal
from meadow.server.notify import notifier as module
from meadow.server.notify.notices import Notice
from meadow.server.notify.notifier import KEPT_S_MAX, REFUSED_TRIES_MAX, Notifier
from meadow.server.notify.receivers import NotTakenError

EVENTS = ("run_finished", "run_failed", "site_gone")


class Listener:
    """A receiver that keeps what it takes; `fails` is raised while it is set."""

    def __init__(self, name: str = "url") -> None:
        self.name, self.place = name, "here"
        self.taken: list[Notice] = []
        self.tries = 0
        self.fails: Callable[[Notice], Exception | None] = lambda notice: None

    async def take(self, notice: Notice) -> None:
        self.tries += 1
        await asyncio.sleep(0)
        if (error := self.fails(notice)) is not None:
            raise error
        self.taken.append(notice)


class Server:
    """A journal, its notifiers one after another, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(folder / "journal.sqlite")
        self.now_s = 1000.0

    def event(self, kind: str, run_id: int = 0, **detail: Any) -> None:
        """Record an event."""
        self.journal.events.record(run_id, kind, json.dumps(detail), now_s=self.now_s)

    def kinds(self) -> list[str]:
        """Return the kinds of the server's events."""
        return [row["kind"] for row in self.journal.events.after(0)]

    def notifier(self, *receivers: Listener) -> Notifier:
        """Return a notifier as a daemon makes it at its start."""

        async def patiently(method: Callable[[], Any]) -> Any:
            return method()

        async def record(kind: str, detail: Mapping[str, Any]) -> None:
            self.event(kind, **detail)

        made = Notifier(
            self.journal, patiently, receivers, events=EVENTS, folder=self.folder, server="s",
            server_id="ab", record=record, clock=lambda: self.now_s,
        )  # fmt: skip
        made.begin()
        return made


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose pauses are short."""
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    monkeypatch.setattr(module, "PAUSE_S_MAX", 0.002)
    made = Server(tmp_path)
    with closing(made.journal):
        yield made


def until(notifier: Notifier, condition: Callable[[], object]) -> None:
    """Run a notifier until something is so, then end it as a cancelled daemon does."""

    async def main() -> None:
        running = asyncio.create_task(notifier.run())
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.001)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(main())


def test_what_is_told(server: Server) -> None:
    """Events that were asked for, in their order, from the first start on, and each with its sentence."""
    server.event("site_gone", about="before", minutes=10)
    listener = Listener()
    notifier = server.notifier(listener)
    server.event("status", 3, status="running", cause="")
    server.event("status", 3, status="failed", cause="out of memory")
    server.event("site_back", about="a")
    server.event("denied", caller="x")
    server.event("site_gone", about="hospital-a", minutes=10.0)
    until(notifier, lambda: len(listener.taken) == 2)
    first, second = listener.taken
    assert (first.event, first.run_id, first.text) == (
        "run_failed",
        3,
        "run 3 failed: out of memory",
    )
    assert (second.event, second.text) == (
        "site_gone", "hospital-a has been away for 10 minutes",
    )  # fmt: skip
    assert first.id != second.id
    assert notifier.sent == {"url": 2}


def test_it_wakes_for_what_comes_later(server: Server) -> None:
    """A notifier that has nothing to do is told that there is something."""
    listener = Listener()
    notifier = server.notifier(listener)

    async def main() -> None:
        running = asyncio.create_task(notifier.run())
        await asyncio.sleep(0.05)
        server.event("status", 1, status="finished", cause="")
        notifier.wake()
        async with asyncio.timeout(30):
            while not listener.taken:
                await asyncio.sleep(0.001)
        running.cancel()

    asyncio.run(main())


def test_a_killed_daemon_repeats_and_loses_nothing(server: Server) -> None:
    """It is killed before, between and after sending and remembering: the same ids come again."""
    first = Listener()
    server.notifier(first)  # killed before it sends anything
    for run in range(1, 5):
        server.event("status", run, status="finished", cause="")
    again = Listener()
    notifier = server.notifier(again)

    async def lost(name: str, number: int) -> None:
        await asyncio.Event().wait()  # killed between the answer and the note of it

    notifier._taken = lost  # type: ignore[method-assign]
    until(notifier, lambda: len(again.taken) == 1)
    last = Listener()
    until(server.notifier(last), lambda: len(last.taken) == 4)
    assert last.taken[0].id == again.taken[0].id
    assert [notice.run_id for notice in last.taken] == [1, 2, 3, 4]
    silent = Listener()
    server.event("status", 9, status="finished", cause="")
    until(server.notifier(silent), lambda: silent.taken)
    assert [notice.run_id for notice in silent.taken] == [9], "what was taken is not told again"


def test_a_receiver_that_fails_for_a_while(server: Server) -> None:
    """Its events say so once, with the reason, and that it is well again; nothing is lost."""
    listener = Listener()
    listener.fails = lambda notice: NotTakenError("no route") if listener.tries < 20 else None
    notifier = server.notifier(listener)
    server.event("status", 1, status="finished", cause="")
    server.event("status", 2, status="finished", cause="")
    until(notifier, lambda: len(listener.taken) == 2)
    assert server.kinds() == ["notify_failed", "notify_recovered"]
    assert notifier.failed["url"] == 19
    assert not notifier.troubles


def test_a_receiver_that_fails_over_a_restart(server: Server) -> None:
    """Its trouble is known after the restart: it is not said again, and its end is."""
    down, well = Listener(), Listener()
    down.fails = lambda notice: NotTakenError("no route")
    notifier = server.notifier(down)
    server.event("status", 1, status="finished", cause="")
    until(notifier, lambda: down.tries > 2)
    again = server.notifier(down)
    assert again.troubles == {"url": "no route"}
    until(again, lambda: down.tries > 5)
    until(server.notifier(well), lambda: "notify_recovered" in server.kinds())
    assert server.kinds() == ["notify_failed", "notify_recovered"]
    assert server.notifier(well).troubles == {}


def test_a_notice_that_is_refused(server: Server) -> None:
    """It is tried so often and no more, and the next ones are told."""
    listener = Listener()
    listener.fails = lambda notice: (
        NotTakenError("400", refused=True) if notice.run_id == 1 else None
    )
    notifier = server.notifier(listener)
    server.event("status", 1, status="finished", cause="")
    server.event("status", 2, status="finished", cause="")
    until(notifier, lambda: listener.taken)
    assert [notice.run_id for notice in listener.taken] == [2]
    assert listener.tries == REFUSED_TRIES_MAX + 1
    assert server.kinds() == ["notify_failed", "notify_dropped", "notify_recovered"]


def test_old_events_are_dropped(server: Server) -> None:
    """After days without a receiver, what is new is told."""
    listener = Listener()
    server.notifier(listener)
    server.event("status", 1, status="finished", cause="")
    server.now_s += KEPT_S_MAX + 1
    server.event("status", 2, status="finished", cause="")
    notifier = server.notifier(listener)
    until(notifier, lambda: listener.taken)
    assert [notice.run_id for notice in listener.taken] == [2]
    assert notifier.dropped["url"] == 1


def test_one_receiver_does_not_hold_up_another(server: Server) -> None:
    """Each has a queue of its own."""
    stuck, well = Listener("url"), Listener("command")
    stuck.fails = lambda notice: NotTakenError("down")
    notifier = server.notifier(stuck, well)
    for run in range(1, 4):
        server.event("status", run, status="finished", cause="")
    until(notifier, lambda: len(well.taken) == 3 and stuck.tries > 5)
    assert not stuck.taken
    assert notifier.waiting == {"url": 3, "command": 0}
    assert "down" in notifier.troubles["url"]


def test_a_journal_that_was_restored(server: Server) -> None:
    """One that ends before what was told: new events are told all the same, with new ids."""
    (server.folder / "notify.json").write_text('{"url": 5000}')
    listener = Listener()
    notifier = server.notifier(listener)
    server.event("status", 1, status="finished", cause="")
    until(notifier, lambda: listener.taken)


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"url": null}', b'{"url": "x"}', b"\xff"])
def test_a_damaged_note(server: Server, content: bytes) -> None:
    """What was told before is unknown: what is new is told."""
    (server.folder / "notify.json").write_bytes(content)
    listener = Listener()
    notifier = server.notifier(listener)
    server.event("status", 1, status="finished", cause="")
    until(notifier, lambda: listener.taken)


def test_a_defect_is_not_the_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error is logged, and the notice tried again."""
    monkeypatch.setattr(module, "DEFECT_PAUSE_S", 0.001)
    listener = Listener()
    listener.fails = lambda notice: RuntimeError("bug") if listener.tries < 3 else None
    notifier = server.notifier(listener)
    server.event("status", 1, status="finished", cause="")
    until(notifier, lambda: listener.taken)
