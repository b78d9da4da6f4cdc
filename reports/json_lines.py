"""Files with one JSON object a line, read as a stream, also while a run still writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ConfigError

__all__ = ["LINE_BYTES_MAX", "number_in", "read_objects", "round_in"]

LINE_BYTES_MAX = 256 << 20
"""A round of a million clients has a line of about 50 MB."""
ROUND_MAX = 10**9


def read_objects(path: Path, *, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file; no line is held longer than until the next.

    Edge cases: a file that is not there has no objects; a last line without its end is left out
        if it cannot be read, for a run may be writing it.
    Raises:
        ConfigError: a line is longer than `line_bytes_max`, or no JSON object; or the file cannot
            be read.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(line_bytes_max + 1):
                number += 1
                if len(line) > line_bytes_max:
                    raise ConfigError(
                        f"{path}: line {number} is longer than {line_bytes_max} bytes; is it the "
                        "file of a run?"
                    )
                found = _object(line)
                if found is not None:
                    yield found
                elif line.endswith(b"\n"):
                    raise ConfigError(
                        f"{path}: line {number} is no JSON object; is it the file of a run? "
                        "Remove the line if it is damaged"
                    )
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def number_in(value: object) -> float:
    """Return a value of a file as a number, NaN if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def round_in(found: dict[str, Any], path: Path) -> int:
    """Return an object's round.

    Raises:
        ConfigError: it has none, or one outside of 0 to `ROUND_MAX`.
    """
    value = found.get("round")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= ROUND_MAX:
        raise ConfigError(
            f"{path}: round must be a whole number from 0 to {ROUND_MAX}, got "
            f"{str(value)[:40]!r}; is it the file of a run?"
        )
    return value
