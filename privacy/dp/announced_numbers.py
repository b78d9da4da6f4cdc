"""Bounds of the numbers that an instruction announces: wide enough for any use, and for accounting.

Within them no computation of privacy overflows or has no number as its result.
"""

from __future__ import annotations

from ...errors import ProtocolError

__all__ = ["NUMBER_MAX", "NUMBER_MIN", "RATE_MIN", "STEPS_MAX", "require_announced"]

NUMBER_MIN, NUMBER_MAX = 1e-12, 1e12
"""Of clips and noise multipliers."""
RATE_MIN = 1e-9
"""Of sampling rates, which are 1 at most."""
STEPS_MAX = 1_000_000
"""How many steps of DP-SGD a round may have."""


def require_announced(
    key: str, value: object, *, at_least: float = NUMBER_MIN, at_most: float = NUMBER_MAX
) -> float:
    """Return a number that was announced.

    Raises:
        ProtocolError: it is no float within the bounds.
    """
    if type(value) is not float or not at_least <= value <= at_most:
        raise ProtocolError(
            f"{key} must be a number from {at_least:g} to {at_most:g}, got {value!r:.80}"
        )
    return value
