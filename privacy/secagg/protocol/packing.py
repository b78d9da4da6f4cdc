"""Packs vectors of unsigned numbers of up to 32 bits without gaps.

Widths of whole bytes are copied. For other widths, 32 numbers of `bits` bits fill `bits` words of
32 bits; some thousand of these groups are processed at a time, so that they stay in the cache.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["pack", "packed_bytes", "unpack"]

GROUP = 32
BLOCK = 1024 * GROUP

Words = NDArray[np.uint32]


def packed_bytes(count: int, bits: int) -> int:
    """Return the size of `count` packed numbers, in bytes."""
    return -(-count * bits // 8)


def pack(values: Words, bits: int) -> bytes:
    """Return the lowest `bits` bits of each value, concatenated; the lowest bit comes first."""
    if bits % 8 == 0:
        return _bytes_of(values.astype("<u4", copy=False))[:, : bits // 8].tobytes()
    blocks = [
        _pack_groups(values[start : start + BLOCK], bits) for start in range(0, len(values), BLOCK)
    ]
    return b"".join(blocks)[: packed_bytes(len(values), bits)]


def unpack(data: bytes | memoryview, count: int, bits: int) -> Words:
    """Return the `count` numbers that `pack` encoded as `data`.

    The caller has checked that `data` has `packed_bytes(count, bits)` bytes.
    """
    raw = np.frombuffer(data, np.uint8, packed_bytes(count, bits))
    if bits == 32:
        return raw.view("<u4").astype(np.uint32, copy=False)
    values = np.zeros(count, "<u4")
    if bits % 8 == 0:
        _bytes_of(values)[:, : bits // 8] = raw.reshape(count, bits // 8)
        return values.astype(np.uint32, copy=False)
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        first = start // 8 * bits  # a block begins at a whole byte
        part = raw[first : first + packed_bytes(size, bits)]
        values[start : start + size] = _unpack_groups(part, size, bits)
    return values.astype(np.uint32, copy=False)


def _pack_groups(values: Words, bits: int) -> bytes:
    groups = -(-len(values) // GROUP)
    padded = np.zeros(groups * GROUP, np.uint64)
    padded[: len(values)] = values & np.uint32((1 << bits) - 1)
    columns = padded.reshape(groups, GROUP)
    words = np.zeros((groups, bits), np.uint64)
    for place in range(GROUP):
        word, shift = divmod(place * bits, 32)
        shifted = columns[:, place] << np.uint64(shift)
        words[:, word] |= shifted & np.uint64(0xFFFFFFFF)
        if shift + bits > 32:
            words[:, word + 1] |= shifted >> np.uint64(32)
    return words.astype("<u4").tobytes()


def _unpack_groups(raw: NDArray[np.uint8], count: int, bits: int) -> Words:
    groups = -(-count // GROUP)
    padded = np.zeros(4 * groups * bits, np.uint8)
    padded[: len(raw)] = raw
    words = padded.view("<u4").reshape(groups, bits)
    values = np.empty((groups, GROUP), np.uint32)
    for place in range(GROUP):
        word, shift = divmod(place * bits, 32)
        part = words[:, word] >> np.uint32(shift)
        if shift + bits > 32:
            part |= words[:, word + 1] << np.uint32(32 - shift)
        values[:, place] = part & np.uint32((1 << bits) - 1)
    return values.reshape(-1)[:count]


def _bytes_of(values: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return the bytes of little-endian numbers, one row per number."""
    return values.view(np.uint8).reshape(-1, 4)
