"""Fewer bits per value: 16-bit floats, and integers of 8 or 4 bits with stochastic rounding.

A value is an integer times the scale of its block; the largest integer of a block is 127 or 7. A
value is rounded up with the probability of its fractional part, so rounding is unbiased. Source:
Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: communication-efficient SGD via gradient
quantization and encoding" (2017), section 3.1, with the largest value in place of the norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["Form", "Halves", "Integers", "Plain", "Row"]

Row = NDArray[np.float32]
Form = tuple[np.dtype[Any], int]
"""The dtype and the number of values of one encoded part."""

FINITE_MAX = {False: 65504.0, True: 3.3895313892515355e38}
"""The largest finite number of fp16, and of bf16."""
BLOCK = 1024
"""The number of values that share a scale."""
BLOCKS_AT_ONCE = 256
"""What is worked on at once stays in a core's cache."""


class Plain:
    """Sends float32 values unchanged."""

    feeds_back = False

    def __init__(self, size: int) -> None:
        self.forms: Sequence[Form] = [(np.dtype(np.float32), size)]

    def encode(self, row: Row, generator: np.random.Generator) -> list[NDArray[Any]]:
        return [row]

    def decode(self, parts: Sequence[NDArray[Any]], generator: np.random.Generator) -> Row:
        return np.asarray(parts[0], np.float32)


class Halves:
    """Rounds to the nearest fp16 or bf16; values beyond the range of fp16 become its largest."""

    feeds_back = False

    def __init__(self, size: int, *, brain: bool) -> None:
        self._dtype = np.dtype(ml_dtypes.bfloat16 if brain else np.float16)
        self._max = FINITE_MAX[brain]
        self.forms: Sequence[Form] = [(np.dtype(np.uint16), size)]

    def encode(self, row: Row, generator: np.random.Generator) -> list[NDArray[Any]]:
        return [np.clip(row, -self._max, self._max).astype(self._dtype).view(np.uint16)]

    def decode(self, parts: Sequence[NDArray[Any]], generator: np.random.Generator) -> Row:
        return parts[0].view(self._dtype).astype(np.float32)


class Integers:
    """Rounds to integers of 8 or 4 bits, with a float32 scale for each block of values."""

    feeds_back = False

    def __init__(self, size: int, *, bits: int) -> None:
        assert bits in (4, 8), "two integers to a byte, or one"
        self._size, self._bits = size, bits
        self._blocks = -(-size // BLOCK)
        self._level_max = (1 << (bits - 1)) - 1
        held = size if bits == 8 else -(-size // 2)
        self.forms: Sequence[Form] = [
            (np.dtype(np.uint8), held),
            (np.dtype(np.float32), self._blocks),
        ]

    def encode(self, row: Row, generator: np.random.Generator) -> list[NDArray[Any]]:
        scales = np.empty(self._blocks, np.float32)
        signed = np.empty(self._blocks * BLOCK, np.int8)
        noise = np.empty((min(self._blocks, BLOCKS_AT_ONCE), BLOCK), np.float32)
        blocks = np.empty_like(noise)
        for first in range(0, self._blocks, BLOCKS_AT_ONCE):
            part = slice(first, min(first + BLOCKS_AT_ONCE, self._blocks))
            count = part.stop - first
            values = row[first * BLOCK : part.stop * BLOCK]
            flat = blocks.reshape(-1)
            flat[: values.size], flat[values.size : count * BLOCK] = values, 0.0
            generator.random(dtype=np.float32, out=noise[:count])
            levels = signed[first * BLOCK : part.stop * BLOCK].reshape(count, BLOCK)
            scales[part] = self._round(blocks[:count], noise[:count], levels)
        return [self._joined(signed[: self._size].view(np.uint8)), scales]

    def _round(self, blocks: Row, noise: Row, levels: NDArray[np.int8]) -> Row:
        """Write the blocks' integers to `levels`, and return their scales; the blocks are overwritten."""
        scales: Row = (np.abs(blocks).max(axis=1) / self._level_max).astype(np.float32)
        with np.errstate(all="ignore"):  # the server refuses values that are not finite
            blocks /= np.where(scales > 0, scales, 1.0)[:, None]
            blocks += noise
            np.floor(blocks, out=blocks)
            np.clip(blocks, -self._level_max, self._level_max, out=blocks)
            levels[:] = blocks
        return scales

    def decode(self, parts: Sequence[NDArray[Any]], generator: np.random.Generator) -> Row:
        blocks = np.zeros((self._blocks, BLOCK), np.float32)
        blocks.reshape(-1)[: self._size] = self._parted(parts[0])
        with np.errstate(all="ignore"):
            blocks *= parts[1][:, None]
        return blocks.reshape(-1)[: self._size]

    def _joined(self, levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self._bits == 8:
            return levels
        pairs = np.zeros(2 * self.forms[0][1], np.uint8)
        pairs[: self._size] = levels & 0xF
        return np.asarray(pairs[0::2] | (pairs[1::2] << 4), np.uint8)

    def _parted(self, held: NDArray[Any]) -> NDArray[np.int8]:
        if self._bits == 8:
            return held.view(np.int8)
        pairs = np.stack([held & 0xF, held >> 4], axis=1).reshape(-1)[: self._size]
        return (pairs.astype(np.int8) ^ 8) - 8
