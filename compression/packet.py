"""Converts params to one row of values, and a row to the bytes of a message.

All floating-point tensors form one row of float32, which is encoded into one array of bytes;
integer and boolean tensors are sent unchanged, under their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from ..errors import ConfigError, ProtocolError
from ..flower.messages import FlatTensor, TensorArray, record_of, tensors_of
from ..strategies.algorithms.algorithm import Params
from ..strategies.algorithms.server_optimizers import is_floating
from ..strategies.rounds.checks import Forms, TensorForm
from .codecs import Codec, codec_of
from .numbers import Row
from .terms import CompressionTerms

__all__ = ["PACKED", "Packer", "is_packed", "require_zstd"]

PACKED = "compression.packed"
"""The array of bytes; no tensor of a model may have this name."""
ZSTD_BYTES = 1024
"""A zstd frame exceeds its content by at most a 256th of the content and this many bytes."""
PLAIN_TENSOR = "compression.as-is."
"""Prefix of the names of tensors that are sent unchanged."""


class Packer:
    """Packs and unpacks the tensors of a model, given their shapes and dtypes."""

    def __init__(self, forms: Forms, terms: CompressionTerms, kind: str) -> None:
        self._forms, self._zstd = forms, terms.zstd
        self._floating = {name: form for name, form in forms.items() if is_floating(form.dtype)}
        shapes = [_real_shape(form) for form in self._floating.values()]
        self._codec: Codec = codec_of(kind, shapes, fraction=terms.fraction, rank=terms.rank)
        self._bytes = sum(count * dtype.itemsize for dtype, count in self._codec.forms)

    @property
    def feeds_back(self) -> bool:
        """As `Codec.feeds_back`."""
        return self._codec.feeds_back

    @property
    def size_bytes(self) -> int:
        """The bytes of a packed record before zstd, tensors that are sent unchanged included."""
        plain = self._forms.items() - self._floating.items()
        return self._bytes + sum(form.dtype.itemsize * math.prod(form.shape) for _, form in plain)

    @property
    def keeps_rows(self) -> bool:
        """Whether the params of a row have all of its bits: each tensor is of float32 or complex64."""
        return all(form.dtype in (np.float32, np.complex64) for form in self._floating.values())

    def row_of(self, params: Params) -> Row:
        """Return the floating-point tensors, flattened and concatenated."""
        rows = [_reals(np.asarray(params[name])) for name in self._floating]
        made, start = np.empty(sum(row.size for row in rows), np.float32), 0
        for row in rows:
            made[start : start + row.size] = row
            start += row.size
        return made

    def pack(self, row: Row, params: Params, seed: int) -> tuple[ArrayRecord, Callable[[], Row]]:
        """Return the packed record, and what computes the row that the receiver will decode from it.

        Raises:
            ConfigError: the terms need zstandard, which is not installed.
        """
        parts = self._codec.encode(row, np.random.default_rng(seed))
        data = b"".join(np.ascontiguousarray(part).data for part in parts)
        if self._zstd:
            data = require_zstd().ZstdCompressor().compress(data)
        arrays = {PACKED: TensorArray(np.frombuffer(data, np.uint8))}
        for name in self._forms.keys() - self._floating.keys():
            arrays[PLAIN_TENSOR + name] = TensorArray(np.asarray(params[name]))
        return record_of(arrays), lambda: self._codec.decode(parts, np.random.default_rng(seed))

    def unpack(self, record: ArrayRecord, seed: int) -> tuple[Row, dict[str, FlatTensor]]:
        """Return the row, and the tensors that were sent unchanged.

        Raises:
            ProtocolError: `pack` cannot have made the record from tensors of these forms.
        """
        tensors = tensors_of(record)
        packed = tensors.pop(PACKED, None)
        others = {name.removeprefix(PLAIN_TENSOR): tensor for name, tensor in tensors.items()}
        expected = {n: form for n, form in self._forms.items() if n not in self._floating}
        found = {name: TensorForm(tensor.shape, tensor.dtype) for name, tensor in others.items()}
        if packed is None or found != expected:
            raise ProtocolError("a compressed record has other tensors than the model")
        if packed.dtype != np.uint8 or len(packed.shape) != 1:
            raise ProtocolError("a compressed record must be a one-dimensional array of bytes")
        most = self._bytes + (self._bytes >> 8) + ZSTD_BYTES if self._zstd else self._bytes
        if packed.shape[0] > most:  # before it is read from its file
            text = f"a compressed record has {packed.shape[0]} bytes, more than {most}"
            raise ProtocolError(text)
        data = self._whole(packed.numpy().tobytes())
        parts, start = [], 0
        for dtype, count in self._codec.forms:
            parts.append(np.frombuffer(data, dtype, count, start))
            start += count * dtype.itemsize
        return self._codec.decode(parts, np.random.default_rng(seed)), others

    def params_of(self, row: Row, others: Mapping[str, FlatTensor], base: Params | None) -> Params:
        """Return the tensors of a row; `base` is the params that a row of deltas is added to."""
        params: dict[str, NDArray[Any]] = {}
        start = 0
        for name, form in self._forms.items():
            if name not in self._floating:
                params[name] = others[name].numpy()
                continue
            made = np.empty(form.shape, form.dtype)
            reals = _reals(made)
            values = row[start : start + reals.size]
            with np.errstate(all="ignore"):  # the strategy refuses values that are not finite
                if base is None:
                    reals[:] = values
                else:
                    np.add(_reals(np.asarray(base[name])), values, out=reals, casting="unsafe")
            params[name] = made
            start += reals.size
        return params

    def _whole(self, data: bytes) -> bytes:
        size = self._bytes
        if self._zstd:
            zstd = require_zstd()
            try:
                if zstd.get_frame_parameters(data).content_size != size:
                    raise ProtocolError(f"a compressed record must unpack to {size} bytes")
                data = zstd.ZstdDecompressor().decompress(data, max_output_size=size)
            except zstd.ZstdError as error:
                raise ProtocolError(f"a compressed record is damaged: {error}") from None
        if len(data) != size:
            raise ProtocolError(f"a compressed record must have {size} bytes, has {len(data)}")
        return data


def is_packed(record: ArrayRecord) -> bool:
    """Return whether a record is compressed."""
    return PACKED in record


def require_zstd() -> Any:
    """Return the package zstandard.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module("zstandard")
    except ImportError:
        raise ConfigError(
            "compression.zstd needs zstandard, which is not installed: "
            "pip install 'meadow-fl[compression]', or set it to false"
        ) from None


def _reals(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array's values as a row of reals; a contiguous array shares its memory."""
    row = array.reshape(-1)
    return row.view(row.real.dtype) if row.dtype.kind == "c" else row


def _real_shape(form: TensorForm) -> tuple[int, ...]:
    return (*form.shape, 2) if form.dtype.kind == "c" else form.shape
