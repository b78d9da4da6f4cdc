"""How often a caller may do something: a few times at once, and then now and then."""

from __future__ import annotations

from collections.abc import Callable, Hashable

__all__ = ["Allowance"]

CALLERS_MAX = 10_000


class Allowance:
    """So many times at once for each caller, and one more each `every_s` seconds."""

    def __init__(self, *, burst: int, every_s: float, clock: Callable[[], float]) -> None:
        self._burst = burst
        self._every_s = every_s
        self._clock = clock
        self._spent: dict[Hashable, tuple[float, float]] = {}

    def take(self, caller: Hashable) -> bool:
        """Return whether a caller may do it once more, and count it if so."""
        now_s = self._clock()
        before, at_s = self._spent.pop(caller, (0.0, now_s))
        spent = max(0.0, before - max(0.0, now_s - at_s) / self._every_s)
        allowed = spent + 1 <= self._burst
        self._spent[caller] = (spent + allowed, now_s)
        if len(self._spent) > CALLERS_MAX:
            del self._spent[next(iter(self._spent))]
        return allowed
