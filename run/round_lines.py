"""A file of one JSON object per round; a resumed run repairs what a crash truncated."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import StoreError
from ..transport.durable import write_file

__all__ = ["RoundLines", "as_json"]


def as_json(value: Any) -> bytes:
    """Return a value's JSON text; non-finite numbers are written as NaN."""
    return json.dumps(value, allow_nan=True).encode()


class RoundLines:
    """Appends one line per round; every object has the key "round".

    The file stays open between lines; each line is flushed to the system at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a round.

        Raises:
            StoreError: the file cannot be written.
        """
        try:
            if self._file is None:
                self._file = self.path.open("ab")
            self._file.write(as_json(line) + b"\n")
            self._file.flush()
        except OSError as error:
            raise StoreError(f"{self.path} cannot be written: {error.strerror}") from error

    def read(self) -> list[dict[str, Any]]:
        """Return all lines, except one that a full disk or a crash truncated."""
        return self._up_to(math.inf)

    def count(self) -> int:
        """Return how many lines there are."""
        return len(self._lines())

    def clear(self) -> None:
        """Delete all lines."""
        self.close()
        self.path.unlink(missing_ok=True)

    def repair(self, last: int, row: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Truncate the file after round `last`, also after a crash, and return its lines.

        `row` is that round's line, which is added if it is missing.
        """
        self.close()
        rows = self._up_to(last)
        if row is not None and (not rows or rows[-1]["round"] < last):
            rows.append(dict(row))
        if self.path.exists() or rows:
            write_file(self.path, b"".join(as_json(each) + b"\n" for each in rows))
        return rows

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _up_to(self, last: float) -> list[dict[str, Any]]:
        rows = []
        for line in self._lines():
            try:
                found = json.loads(line)
                is_later = found["round"] > last
            except (ValueError, TypeError, KeyError):
                continue  # truncated by a crash, or damaged on disk
            if is_later:
                break
            rows.append(found)
        return rows

    def _lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines() if self.path.exists() else []
