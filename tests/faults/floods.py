"""Floods of HTTP/2 frames that bring no call to an end; each is a block of bytes that is sent again and again."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import count

from .raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PRIORITY,
    RESET,
    SETTINGS,
    WINDOW_UPDATE,
    frame_of,
    headers_of,
)

TOGETHER = 200
Blocks = Iterator[bytes]


def settings(path: str) -> Blocks:
    """Settings, each of which is to be acknowledged."""
    while True:
        yield frame_of(SETTINGS, 0, 0, b"\x00\x03" + struct.pack(">I", 100)) * TOGETHER


def pings(path: str) -> Blocks:
    """Pings, each of which is to be answered."""
    while True:
        yield frame_of(PING, 0, 0, bytes(8)) * TOGETHER


def resets(path: str) -> Blocks:
    """Calls that are taken back at once."""
    for number in count():
        streams = range(2 * TOGETHER * number + 1, 2 * TOGETHER * (number + 1), 2)
        headers, reset = headers_of(path), struct.pack(">I", 8)
        yield b"".join(
            frame_of(HEADERS, END_HEADERS, stream, headers) + frame_of(RESET, 0, stream, reset)
            for stream in streams
        )


def continuations(path: str) -> Blocks:
    """Headers that never end."""
    yield frame_of(HEADERS, 0, 1, headers_of(path))
    piece = b"\x00\x05x-abc\x7f\x81\x07" + b"v" * 262
    while True:
        yield frame_of(CONTINUATION, 0, 1, piece * 50) * 4


def empty_continuations(path: str) -> Blocks:
    """Headers that never end, and nothing in them."""
    yield frame_of(HEADERS, 0, 1, headers_of(path))
    while True:
        yield frame_of(CONTINUATION, 0, 1, b"") * TOGETHER


def large_headers(path: str) -> Blocks:
    """Calls whose headers are too large."""
    for number in count():
        headers = headers_of(path) + (b"\x00\x05x-abc\x7f\x81\x07" + b"v" * 262) * 50
        yield frame_of(HEADERS, END_HEADERS, 2 * number + 1, headers)


def empty_data(path: str) -> Blocks:
    """Data of a call without a byte in it."""
    yield frame_of(HEADERS, END_HEADERS, 1, headers_of(path))
    while True:
        yield frame_of(DATA, 0, 1, b"") * TOGETHER


def window_updates(path: str) -> Blocks:
    """Room for what nobody sends."""
    yield frame_of(HEADERS, END_HEADERS, 1, headers_of(path))
    while True:
        yield frame_of(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)) * TOGETHER


def priorities(path: str) -> Blocks:
    """Priorities of streams that there are not."""
    while True:
        yield frame_of(PRIORITY, 0, 1, bytes(4) + b"\x10") * TOGETHER


def failing_calls(path: str) -> Blocks:
    """Calls of a method that there is not."""
    for number in count():
        streams = range(2 * TOGETHER * number + 1, 2 * TOGETHER * (number + 1), 2)
        yield b"".join(
            frame_of(HEADERS, END_HEADERS | 1, each, headers_of("/none/none")) for each in streams
        )


FLOODS: dict[str, Callable[[str], Blocks]] = {
    each.__name__: each
    for each in (
        settings, pings, resets, continuations, empty_continuations, large_headers, empty_data,
        window_updates, priorities, failing_calls,
    )
}  # fmt: skip
