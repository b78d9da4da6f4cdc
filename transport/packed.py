"""Files of tensors inside a message, so that a small model needs no separate transfer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..flower.messages import FlatTensor, TensorArray, dtype_of
from .header import Extent, parse_header, read_length
from .layout import FileLayout

__all__ = ["PACKED_BYTES_MAX", "pack_tensors", "unpack_tensors"]

PACKED_BYTES_MAX: Final = 32 << 10


def pack_tensors(layout: FileLayout) -> bytes:
    """Return the bytes of a layout's file, in memory."""
    return b"".join(layout.blocks())


def unpack_tensors(data: bytes) -> Mapping[str, FlatTensor]:
    """Return the tensors in the bytes of a file, in the order of their data, and read-only.

    Raises:
        LimitError: there are more than `PACKED_BYTES_MAX`.
        ProtocolError: the header is malformed, or does not match the data.
    """
    length = read_length(data[:8], len(data), PACKED_BYTES_MAX)
    extents = parse_header(data[8 : 8 + length], len(data)).extents
    return {name: TensorArray(_values(data, extent)).tensor for name, extent in extents.items()}


def _values(data: bytes, extent: Extent) -> NDArray[np.generic]:
    dtype, count = dtype_of(extent.dtype), math.prod(extent.shape)
    raw = np.frombuffer(data, np.uint8, count * dtype.itemsize, extent.begin)
    if dtype == np.bool_:  # other bytes than 0 and 1 are no booleans
        values: NDArray[np.generic] = raw != 0
    else:
        values = (raw if extent.begin % dtype.alignment == 0 else raw.copy()).view(dtype)
    values.flags.writeable = False
    return values.reshape(extent.shape)
