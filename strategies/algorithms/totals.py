"""Numbers that clients add up beside their params, read from an aggregate."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import RunError

__all__ = ["positive"]


def positive(what: str, value: NDArray[Any]) -> float:
    """Return a clients' mean that something is divided by or scaled with.

    Raises:
        RunError: it is not > 0, or not finite.
    """
    number = float(value)
    if not (np.isfinite(number) and number > 0):
        raise RunError(
            f"{what} must have a mean > 0, got {number:g}; a client answered with something else"
        )
    return number
