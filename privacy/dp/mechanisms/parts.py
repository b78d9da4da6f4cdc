"""Work on long rows of values, cut into parts for the cores that are there.

Which values are in which part depends on their number alone, and a part's noise on its place: so
the same seed gives the same bits, however many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ....machine.process_limits import available_cores

__all__ = ["BLOCK", "PART", "threads_for", "work_through"]

PART = 1 << 16
"""Values: a thread is worth waking for them."""
BLOCK = 8_192
"""Values at once: what is made of them stays in the cache."""
ALONE_MAX = 4 * PART
"""Values that one thread is done with before others would be awake."""
THREADS_MAX = 16
"""numpy lets go of the interpreter's lock."""


def threads_for(values: int) -> int:
    """Return how many threads are worth their while for so many values."""
    return 1 if values <= ALONE_MAX else min(available_cores(), THREADS_MAX)


def work_through(parts: int, work: Callable[[int], None], *, values: int) -> None:
    """Call `work` with the number of each part, side by side if they have many values together."""
    threads = threads_for(values)
    if threads == 1:
        for number in range(parts):
            work(number)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, number) for number in range(parts)]:
            done.result()
