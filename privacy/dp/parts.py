"""Work on long rows of values, cut into parts for the cores that are there.

Which values are in which part depends on their number alone, and a part's noise on its place: so
the same seed gives the same bits, however many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ...process_limits import available_cores

__all__ = ["ALONE_MAX", "BLOCK", "PART", "THREADS_MAX", "work_through"]

PART = 1 << 16
"""Values: a thread is worth waking for them."""
BLOCK = 8_192
"""Values at once: what is made of them stays in the cache."""
ALONE_MAX = 4 * PART
"""Values that one thread is done with before others would be awake."""
THREADS_MAX = 16
"""numpy lets go of the interpreter's lock."""


def work_through(parts: int, work: Callable[[int], None], *, values: int) -> None:
    """Call `work` with the number of each part, side by side if they have many values together."""
    if values <= ALONE_MAX:
        for number in range(parts):
            work(number)
        return
    with ThreadPoolExecutor(min(parts, available_cores(), THREADS_MAX)) as pool:
        for done in [pool.submit(work, number) for number in range(parts)]:
            done.result()
