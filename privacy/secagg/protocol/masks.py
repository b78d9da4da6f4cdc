"""Masks: AES-256 in counter mode as uint32 values, added to a vector block by block.

A block of the vector stays in the processor's cache while the keystreams of many keys are added
to it, so the vector is read and written once for `KEYS_AT_ONCE` masks. A keystream can begin at
any block, so several threads can each process a part of the vector; the cipher and the sums
release the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

__all__ = ["Keystream", "Mask", "add_masks"]

BLOCK = 32_768
"""The number of values generated at once: 128 KiB."""

KEYS_AT_ONCE = 64
PART_VALUES = 4 * BLOCK
"""The fewest values for which a further thread saves time."""
VALUES_PER_CIPHER_BLOCK = 4

ZEROS = memoryview(bytes(4 * BLOCK))


class Mask(NamedTuple):
    """A key, and whether its keystream is added or subtracted."""

    key: bytes
    sign: Literal[1, -1]


class Keystream:
    """The sequence of uint32 values that is generated from a 32-byte key.

    Guarantees: the values do not depend on how many are taken at a time. A key is used for one
        stream only, so the counter begins at zero.
    Edge cases: `start`, the number of the first value, is a multiple of 4.
    """

    def __init__(self, key: bytes, start: int = 0) -> None:
        counter, inside = divmod(start, VALUES_PER_CIPHER_BLOCK)
        assert not inside, "a keystream begins with a whole cipher block"
        cipher = Cipher(algorithms.AES256(key), modes.CTR(counter.to_bytes(16, "big")))
        self._context: CipherContext = cipher.encryptor()

    def take(self, count: int, buffer: bytearray) -> NDArray[np.uint32]:
        """Return the next `count` values, at most `BLOCK`, in the memory of `buffer`."""
        self._context.update_into(ZEROS[: 4 * count], buffer)
        return np.frombuffer(buffer, "<u4", count)


def stream_buffer() -> bytearray:
    """Return memory for `Keystream.take`."""
    return bytearray(4 * BLOCK + 15)  # update_into needs one more cipher block


def add_masks(total: NDArray[np.uint32], masks: Sequence[Mask], *, threads: int = 1) -> None:
    """Add or subtract masks, modulo 2^32 and in place in `total`.

    A long vector is split among at most `threads` threads.
    """
    count = max(1, min(threads, len(total) // PART_VALUES))
    size = -(-len(total) // count // VALUES_PER_CIPHER_BLOCK) * VALUES_PER_CIPHER_BLOCK
    starts = range(0, len(total), size or 1)
    if count == 1:
        _add_to_part(total, masks, 0)
        return
    with ThreadPoolExecutor(count) as pool:
        parts = [
            pool.submit(_add_to_part, total[start : start + size], masks, start) for start in starts
        ]
        for part in parts:
            part.result()


def _add_to_part(part: NDArray[np.uint32], masks: Sequence[Mask], at: int) -> None:
    """Add the masks' values from index `at` on."""
    buffer = stream_buffer()
    for first in range(0, len(masks), KEYS_AT_ONCE):
        group = masks[first : first + KEYS_AT_ONCE]
        streams = [(Keystream(mask.key, at), mask.sign) for mask in group]
        for start in range(0, len(part), BLOCK):
            block = part[start : start + BLOCK]
            for stream, sign in streams:
                values = stream.take(len(block), buffer)
                if sign > 0:
                    np.add(block, values, out=block)
                else:
                    np.subtract(block, values, out=block)
