"""A learning rate schedule of an app's own: the server computes each round's rate and sends it."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

from ...errors import RunError

__all__ = ["FACTOR_MAX", "RateOfRound", "Schedule", "rate_of_round"]

Schedule = Callable[..., Any]
"""schedule(round_number, rounds) returns what the learning rate is multiplied by, >= 0; rounds count from 1."""
RateOfRound = Callable[[int], float]
FACTOR_MAX = 1e9


def rate_of_round(schedule: Schedule, *, rate: float, rounds: int) -> RateOfRound:
    """Return the function from a round's number to the rate that its clients train with: `rate` times
    what the schedule returns. It follows from the number alone, so that a resumed run goes on with
    the same rates.

    Raises:
        RunError: in a round, if the schedule fails, or returns anything but a number from 0 to
            `FACTOR_MAX`.
    """
    name = f"training.schedule {getattr(schedule, '__name__', schedule)!r}"

    def rate_of(number: int) -> float:
        try:
            factor = schedule(number, rounds)
        except Exception as error:  # the app's own function
            raise RunError(f"{name} failed in round {number}: {error!r}") from error
        number_given = isinstance(factor, Real) and not isinstance(factor, bool)
        if not number_given or not 0 <= float(factor) <= FACTOR_MAX:  # NaN is not either
            raise RunError(
                f"{name} returned {factor!r:.80} for round {number}; return what the learning rate is "
                f"multiplied by, a number from 0 to {FACTOR_MAX:g}"
            )
        return rate * float(factor)

    return rate_of
