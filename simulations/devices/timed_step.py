"""When a step ends, and who counts by then: known before anybody has trained."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["TimedStep"]

Places = NDArray[np.int64]


class TimedStep:
    """One batch of instructions whose answers arrive at known times.

    It ends when everybody has answered; or when its deadline has passed and as many valid answers
    as its quorum are there; below the quorum it waits on for the next ones. An answer that the
    device fails with is no valid one.

    Attributes:
        fails: whose device answers with an error, (clients,).
    """

    def __init__(
        self,
        arrivals_s: NDArray[np.float64],
        fails: NDArray[np.bool_],
        *,
        now_s: float,
        deadline_s: float | None,
        quorum: int,
    ) -> None:
        """Shapes: (clients,), in the order of the instructions; inf is a client that never answers.

        Units: `arrivals_s` are times of the clock that shows `now_s`; None is no deadline.
        """
        order = np.argsort(arrivals_s, kind="stable")
        self._order = order[np.isfinite(arrivals_s[order])]
        self._arrivals_s = arrivals_s[self._order]
        self.fails = fails
        self._asked = len(arrivals_s)
        self._quorum = min(quorum, self._asked)
        self._now_s = now_s
        self._deadline_at_s = now_s + (math.inf if deadline_s is None else deadline_s)
        self._taken = 0

    def take(self, valid: int) -> Places:
        """Return whose answers count beside those taken before, ascending; empty if none do.

        `valid` is how many of the answers that were taken before turned out to be valid.
        """
        begin = self._taken
        on_time = int(np.searchsorted(self._arrivals_s, self._deadline_at_s, side="right"))
        lacking = self._quorum - valid
        enough = 0
        if lacking > 0:
            ahead = np.cumsum(~self.fails[self._order[begin:]])
            enough = begin + min(int(np.searchsorted(ahead, lacking)) + 1, len(ahead))
        self._taken = max(begin, on_time, enough)
        return np.sort(self._order[begin : self._taken])

    @property
    def late(self) -> Places:
        """Whose answers came, or would have come, after the end."""
        return np.sort(self._order[self._taken :])

    @property
    def end_s(self) -> float:
        """When the step is over, if nobody is taken any more."""
        last_s = float(self._arrivals_s[self._taken - 1]) if self._taken else self._now_s
        if self._taken == self._asked or math.isinf(self._deadline_at_s):
            return last_s
        return max(last_s, self._deadline_at_s)
