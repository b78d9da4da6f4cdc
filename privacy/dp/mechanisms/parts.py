"""Splits work on long rows of values into parts for several threads.

The split depends on the number of values alone, and a part's noise on its index, so the same seed
gives the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ....machine.process_limits import available_cores

__all__ = ["BLOCK", "PART", "threads_for", "work_through"]

PART = 1 << 16
"""The values of a part: enough for a thread of its own."""
BLOCK = 8_192
"""The values processed at once: they and their intermediate results stay in the cache."""
ALONE_MAX = 4 * PART
"""Up to this many values, one thread is faster than several."""
THREADS_MAX = 16
"""Threads help, as numpy releases the interpreter's lock."""


def threads_for(values: int) -> int:
    """Return the number of threads that is fastest for so many values."""
    return 1 if values <= ALONE_MAX else min(available_cores(), THREADS_MAX)


def work_through(parts: int, work: Callable[[int], None], *, values: int) -> None:
    """Call `work` with the index of each part, in parallel if the parts have many `values`."""
    threads = threads_for(values)
    if threads == 1:
        for number in range(parts):
            work(number)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, number) for number in range(parts)]:
            done.result()
