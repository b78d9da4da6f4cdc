"""TensorBoard's event files, scalars only.

Source: TensorFlow, tensorboard/compat/proto/event.proto and tsl/lib/io/record_writer.cc: a record
is its length, a masked CRC-32C of the length, the data, and a masked CRC-32C of the data.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

__all__ = ["EventFile", "crc32c"]

FLOAT32_MAX = 3.4028234663852886e38
"""The largest value that an event can hold; a loss may be larger."""

_POLYNOMIAL = 0x82F63B78
_TABLE: list[int] = []
for _byte in range(256):
    _value = _byte
    for _ in range(8):
        _value = (_value >> 1) ^ (_POLYNOMIAL if _value & 1 else 0)
    _TABLE.append(_value)


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of `data`."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _float(tag: int, value: float) -> bytes:
    return struct.pack("<Bf", tag, max(-FLOAT32_MAX, min(value, FLOAT32_MAX)))


def _bytes_field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


class EventFile:
    """Appends scalars to an event file; TensorBoard reads it while it grows."""

    def __init__(self, folder: Path, *, created_at_s: float) -> None:
        """Open the folder's event file, or create one with `created_at_s` in its name."""
        folder.mkdir(parents=True, exist_ok=True)
        there = sorted(folder.glob("events.out.tfevents.*.meadow"))
        made = folder / f"events.out.tfevents.{int(created_at_s)}.meadow"
        self._file = (there[0] if there else made).open("ab")
        if not there:
            version = _bytes_field(3, b"brain.Event:2")
            self._append(struct.pack("<Bd", 0x09, created_at_s) + version)

    def add(self, step: int, scalars: Mapping[str, float], *, at_s: float) -> None:
        """Append one event with these scalars at a step (a round)."""
        values = b"".join(
            _bytes_field(1, _bytes_field(1, tag.encode()) + _float(0x15, value))
            for tag, value in scalars.items()
        )
        event = struct.pack("<Bd", 0x09, at_s) + b"\x10" + _varint(step) + _bytes_field(5, values)
        self._append(event)

    def _append(self, data: bytes) -> None:
        self._file.write(_record(data))
        self._file.flush()
