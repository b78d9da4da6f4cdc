"""Event files: what TensorBoard reads, byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from meadow.run.tensorboard import EventFile, crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"", 0),
    ],
)
def test_crc32c(data: bytes, expected: int) -> None:
    """Check values: RFC 3720, appendix B.4, and the usual "123456789"."""
    assert crc32c(data) == expected


def records(path: Path) -> list[bytes]:
    """Read a TFRecord file, checking lengths and checksums."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + length]
        for covered, at in ((data[:8], 8), (body, 12 + length)):
            (masked,) = struct.unpack("<I", data[at : at + 4])
            rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
            assert ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF == crc32c(covered)
        found.append(body)
        data = data[16 + length :]
    return found


def test_scalars_are_events(tmp_path: Path) -> None:
    """An event is wall_time (1), step (2), and a summary (5) of values: tag (1), simple_value (2).

    Source: tensorboard/compat/proto/event.proto and summary.proto; the bytes are put together
    here by hand.
    """
    file = EventFile(tmp_path, created_at_s=1700000000.0)
    file.add(300, {"train/loss": 0.5}, at_s=1700000001.0)
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("events.out.tfevents.1700000000.")
    version, event = records(path)
    assert version == b"\x09" + struct.pack("<d", 1700000000.0) + b"\x1a\x0dbrain.Event:2"
    value = b"\x0a\x0atrain/loss" + b"\x15" + struct.pack("<f", 0.5)
    summary = b"\x0a" + bytes([len(value)]) + value
    time_and_step = b"\x09" + struct.pack("<d", 1700000001.0) + b"\x10\xac\x02"
    assert event == time_and_step + b"\x2a" + bytes([len(summary)]) + summary


def test_a_file_is_continued(tmp_path: Path) -> None:
    """A run that goes on appends to its file, without a second header."""
    EventFile(tmp_path, created_at_s=5.0).add(1, {"a": 1.0}, at_s=6.0)
    EventFile(tmp_path, created_at_s=5.0).add(2, {"a": 2.0}, at_s=7.0)
    (path,) = tmp_path.iterdir()
    assert len(records(path)) == 3


def test_tensorboard_reads_it(tmp_path: Path) -> None:
    """Where the tensorboard package is installed, it finds the scalars."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    file = EventFile(tmp_path, created_at_s=5.0)
    file.add(3, {"evaluate/loss": 0.25}, at_s=6.0)
    (path,) = tmp_path.iterdir()
    events = list(loader.LegacyEventFileLoader(str(path)).Load())
    assert events[-1].step == 3
    assert events[-1].summary.value[0].simple_value == 0.25


def test_values_beyond_float32_are_cut(tmp_path: Path) -> None:
    """A loss that diverges does not end the run where it is drawn."""
    events = EventFile(tmp_path, created_at_s=1.0)
    events.add(1, {"loss": 1e200, "gain": -1e200}, at_s=2.0)
    (path,) = tmp_path.iterdir()
    largest = struct.pack("<f", np.finfo(np.float32).max)
    assert b"\x15" + largest in path.read_bytes()
    assert b"\x15" + largest[:3] + b"\xff" in path.read_bytes()


def test_a_file_made_earlier_is_found(tmp_path: Path) -> None:
    """A run that goes on at another time has one file."""
    EventFile(tmp_path, created_at_s=1.0).add(1, {"loss": 1.0}, at_s=1.0)
    EventFile(tmp_path, created_at_s=99.0).add(2, {"loss": 1.0}, at_s=99.0)
    assert [path.name for path in tmp_path.iterdir()] == ["events.out.tfevents.1.meadow"]
