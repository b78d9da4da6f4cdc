"""Slots: at most so many steps at once, and a slow one does not keep the others."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from meadow.errors import UnreachableError
from meadow.server.daemon import stream_limiter as slots_module
from meadow.server.daemon.stream_limiter import Slots


def test_no_more_steps_at_once_than_slots() -> None:
    """Ten streams with two slots never run three steps together."""
    running, most = 0, 0

    async def work() -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return 7

    async def main() -> list[int]:
        slots = Slots(2)
        return await asyncio.gather(*(slots.step(1, work) for _ in range(10)))

    assert asyncio.run(main()) == [7] * 10
    assert most == 2


def test_a_slow_step_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one peer sends nothing, another one's steps go on, and the slow one still ends."""
    monkeypatch.setattr(slots_module, "PATIENCE_S", 0.001)

    async def main() -> list[str]:
        slots, arrived, order = Slots(1), asyncio.Event(), []

        async def slow() -> None:
            await arrived.wait()
            order.append("slow")

        async def fast() -> None:
            order.append("fast")

        waiting = asyncio.create_task(slots.step(1, slow))
        await asyncio.sleep(0)
        await slots.step(1, fast)
        arrived.set()
        await waiting
        return order

    assert asyncio.run(main()) == ["fast", "slow"]


def test_cancelling_a_stream_cancels_its_step() -> None:
    """A stream that ends takes its unfinished step with it."""

    async def main() -> bool:
        slots, cancelled = Slots(1), asyncio.Event()

        async def forever() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        task = asyncio.create_task(slots.step(1, forever))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(cancelled.wait(), 10)
        return cancelled.is_set()

    assert asyncio.run(main())


def test_too_many_slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound, the caller with the most slow steps loses its oldest, and nobody else."""
    monkeypatch.setattr(slots_module, "PATIENCE_S", 0.001)
    monkeypatch.setattr(slots_module, "SLOW_STEPS_MAX", 3)

    async def main() -> list[object]:
        slots, go_on = Slots(1), asyncio.Event()
        begun: list[int] = []

        async def wait(number: int) -> int:
            begun.append(number)
            await go_on.wait()
            return number

        callers = [7, 8, 7, 7]
        tasks = [
            asyncio.create_task(slots.step(caller, partial(wait, number)))
            for number, caller in enumerate(callers)
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        go_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = asyncio.run(main())
    assert isinstance(first, UnreachableError) and others == [1, 2, 3]
