"""The CRC-32 of two pieces together, from the CRC-32 of each.

So a receiver that checks every chunk has the whole file's checksum without a second pass.

Source: Mark Adler, zlib, crc32_combine: appending n zero bytes multiplies the CRC, a vector over
GF(2), by a matrix that depends on n alone.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["combine_crc32"]

_POLYNOMIAL = 0xEDB88320
Matrix = tuple[int, ...]


def combine_crc32(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32 of a + b, given those of a and b and the length of b."""
    return _times(_append_zeros(second_bytes), first) ^ second


def _times(matrix: Matrix, vector: int) -> int:
    total = 0
    for column in matrix:
        if not vector:
            break
        if vector & 1:
            total ^= column
        vector >>= 1
    return total


@lru_cache(maxsize=64)
def _append_zeros(count: int) -> Matrix:
    """Return the matrix that appends `count` zero bytes."""
    power = (_POLYNOMIAL, *(1 << bit for bit in range(31)))  # one zero bit
    for _ in range(3):
        power = _square(power)  # one zero byte
    result = tuple(1 << bit for bit in range(32))
    while count:
        if count & 1:
            result = tuple(_times(power, column) for column in result)
        power = _square(power)
        count >>= 1
    return result


def _square(matrix: Matrix) -> Matrix:
    return tuple(_times(matrix, column) for column in matrix)
