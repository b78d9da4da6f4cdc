"""Columns of data that statistics are asked of."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import ConfigError

__all__ = ["Column", "column_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column, and between which values it is looked at; what is beyond counts as the nearer one."""

    name: str
    low: float
    high: float


def column_of(text: str) -> Column:
    """Read a column and its range, as "age=0:120".

    Raises:
        ConfigError: it is in another form, or the range is empty.
    """
    name, equals, bounds = text.partition("=")
    low, colon, high = bounds.partition(":")
    try:
        limits = float(low), float(high)
    except ValueError:
        limits = math.nan, math.nan
    if not name or "/" in name or not equals or not colon or not limits[0] < limits[1]:
        raise ConfigError(
            f'columns must be names and the ranges to look at, as "age=0:120", got {text!r}'
        )
    if not math.isfinite(limits[1] - limits[0]):
        raise ConfigError(f"columns: the range of {name!r} must be finite, got {bounds!r}")
    return Column(name=name, low=limits[0], high=limits[1])
