"""The first messages of calls: bounded, fair to those who return together, and no place is held for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from meadow.errors import UnreachableError
from meadow.server.daemon import calls
from meadow.server.daemon.calls import FirstMessages

PATIENCE_S = 30.0


class Requests:
    """The messages of one call: one, once the test lets it arrive."""

    def __init__(self, *, there: bool = False) -> None:
        self.arrived, self.reading = asyncio.Event(), asyncio.Event()
        if there:
            self.arrived.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.reading.set()
        await self.arrived.wait()
        yield b"hello"


def asked(first: FirstMessages, requests: Requests, caller: str) -> asyncio.Task[bytes]:
    """A call of this caller."""
    return asyncio.create_task(first.next(aiter(requests), caller, PATIENCE_S))


def test_a_crowd_is_served() -> None:
    """All of a thousand callers who come at once are served, no more than four at a time."""
    at_once, most = 0, 0

    class Counted(Requests):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1
            yield b"hello"

    async def main() -> list[bytes]:
        first = FirstMessages(4, 2)
        tasks = [asked(first, Counted(), f"site-{number}") for number in range(1000)]
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [b"hello"] * 1000
    assert most <= 4


def test_one_caller_does_not_hold_the_others_up() -> None:
    """A caller with several calls that bring nothing loses its oldest, at once, to another caller."""

    async def main() -> None:
        first = FirstMessages(4, 4)
        greedy = [asked(first, Requests(), "greedy") for _ in range(4)]
        await asyncio.sleep(0)
        assert await asked(first, Requests(there=True), "another") == b"hello"
        done, _ = await asyncio.wait(greedy, timeout=PATIENCE_S, return_when="FIRST_COMPLETED")
        assert done == {greedy[0]}
        with pytest.raises(UnreachableError, match="too many calls wait"):
            greedy[0].result()
        for task in greedy:
            task.cancel()
        await asyncio.gather(*greedy, return_exceptions=True)

    asyncio.run(main())


def test_places_are_not_held_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers with one silent call each lose it soon after somebody begins to wait for a place."""
    monkeypatch.setattr(calls, "CROWDED_WAIT_S", 0.05)

    async def main() -> None:
        first = FirstMessages(2, 2)
        silent = [asked(first, Requests(), f"silent-{number}") for number in range(2)]
        await asyncio.sleep(0)
        waiting = [asked(first, Requests(), f"silent-{number}") for number in (2, 3)]
        await asyncio.sleep(0)
        assert await asked(first, Requests(there=True), "honest") == b"hello"
        results = await asyncio.gather(*silent, *waiting, return_exceptions=True)
        assert all(isinstance(each, UnreachableError) for each in results)

    asyncio.run(main())


def test_a_callers_next_call_takes_the_place_of_its_last() -> None:
    """Whoever calls again while it waits for its turn waits once, with the newest call."""

    async def main() -> None:
        first = FirstMessages(1, 1)
        holder = Requests()
        holding = asked(first, holder, "holder")
        await holder.reading.wait()
        old = asked(first, Requests(there=True), "site")
        await asyncio.sleep(0)
        new = asked(first, Requests(there=True), "site")
        with pytest.raises(UnreachableError):
            await old
        holder.arrived.set()
        assert await asyncio.gather(holding, new) == [b"hello", b"hello"]

    asyncio.run(main())


def test_who_gives_up_leaves_no_place_taken() -> None:
    """Callers that go while they wait, or while they are read, leave their places to others."""

    async def main() -> None:
        first = FirstMessages(2, 2)
        tasks = [asked(first, Requests(), f"site-{number}") for number in range(6)]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for number in range(5):
            assert await asked(first, Requests(there=True), f"later-{number}") == b"hello"

    asyncio.run(main())
