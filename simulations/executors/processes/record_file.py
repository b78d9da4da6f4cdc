"""Files of numbered strings of bytes: messages, replies and states on their way to a worker."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from ....errors import StoreError

__all__ = ["read_frames", "write_frames"]

_HEADER = struct.Struct(">QQ")


def write_frames(path: Path, frames: Iterable[tuple[int, bytes]]) -> None:
    """Write frames as they come: each number, length and bytes.

    Raises:
        StoreError: the disk, or the shared memory, is full.
    """
    try:
        with path.open("wb") as file:
            for number, data in frames:
                file.write(_HEADER.pack(number, len(data)))
                file.write(data)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


def read_frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield what `write_frames` was given, in its order.

    Raises:
        StoreError: the file is missing or cut short.
    """
    try:
        with path.open("rb") as file:
            while header := file.read(_HEADER.size):
                number, size = _HEADER.unpack(header)
                data = file.read(size)
                if len(data) < size:
                    raise StoreError(f"{path} is cut short")
                yield number, data
    except (OSError, struct.error) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
