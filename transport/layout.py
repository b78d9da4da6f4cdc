"""The content of a file of tensors before it is written: its header and its data, block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..flower.messages import FlatTensor, TensorArray
from .header import build_header

__all__ = ["BLOCK_BYTES", "FileLayout"]

BLOCK_BYTES: Final = 1 << 20


class FileLayout:
    """The content of a file of tensors; bytes become a vector of uint8.

    Attributes:
        size_bytes: how large the file will be.
    """

    def __init__(
        self,
        tensors: Mapping[str, FlatTensor | NDArray[np.generic] | bytes],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Lay tensors out in the given order; equal tensors give equal bytes.

        Raises:
            ProtocolError: a name is too long, or the format has no such dtype.
            LimitError: there are too many of them.
        """
        self._flats = {name: _flat(tensor) for name, tensor in tensors.items()}
        kinds = {name: (flat.dtype, flat.shape) for name, flat in self._flats.items()}
        self._header = build_header(kinds, metadata or {})
        data = sum(math.prod(flat.shape) * flat.dtype.itemsize for flat in self._flats.values())
        self.size_bytes = len(self._header) + data

    def blocks(self) -> Iterator[bytes | memoryview]:
        """Yield the file's bytes, at most a block of them at a time."""
        yield self._header
        for flat in self._flats.values():
            yield from _blocks(flat)


def _flat(tensor: FlatTensor | NDArray[np.generic] | bytes) -> FlatTensor:
    if isinstance(tensor, bytes):
        return TensorArray(np.frombuffer(tensor, np.uint8)).tensor
    return TensorArray(tensor).tensor if isinstance(tensor, np.ndarray) else tensor


def _blocks(tensor: FlatTensor) -> Iterator[memoryview]:
    dtype = tensor.dtype
    count = math.prod(tensor.shape)
    step = max(1, BLOCK_BYTES // dtype.itemsize)
    for start in range(0, count, step):
        stop = min(start + step, count)
        block = tensor[start:stop]
        if dtype.byteorder == ">":
            block = block.astype(dtype.newbyteorder("<"))
        assert block.shape == (stop - start,), "a tensor gave fewer values than its shape says"
        yield np.ascontiguousarray(block).view(np.uint8).data
