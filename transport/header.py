"""The header of a file of tensors: built from names, dtypes and shapes; parsed from anybody.

Whoever wrote the header may be an adversary. Its size is bounded before it is read, and the
number of its parts before it is parsed, so that a small file cannot claim much memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn, TypeGuard

import numpy as np

from ..errors import LimitError, ProtocolError
from ..flower.messages import dtype_of

__all__ = [
    "CODES",
    "DIMENSIONS_MAX",
    "HEADER_BYTES_MAX",
    "NAME_BYTES_MAX",
    "TENSORS_MAX",
    "Extent",
    "Header",
    "build_header",
    "check_name",
    "parse_header",
    "read_length",
]

HEADER_BYTES_MAX: Final = 32 << 20
TENSORS_MAX: Final = 100_000
NAME_BYTES_MAX: Final = 1024
DIMENSIONS_MAX: Final = 64
"""As many as NumPy and PyTorch know."""

_EXTENT_BYTES_MAX: Final = 1 << 62
# A tensor takes ten quotation marks, three brackets and, for six dimensions, nine commas.
_MARKS_MAX: Final = 32 * TENSORS_MAX
_METADATA: Final = "__metadata__"
_KEYS: Final = {"dtype", "shape", "data_offsets"}

CODES: Final[Mapping[str, str]] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
    "complex64": "C64",
}
"""NumPy's names (with those of ml_dtypes) and the format's."""

_DTYPES: Final = {code: dtype_of(name) for name, code in CODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """One tensor of a file; `begin` counts from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a header says, checked; the extents are in the order of their data."""

    metadata: Mapping[str, str]
    extents: Mapping[str, Extent]


def check_name(name: str, what: str = "tensor") -> str:
    """Return `name` if it can be the name of a tensor or a record.

    Raises:
        ProtocolError: it is too long, or is not text.
    """
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise ProtocolError(f"the name {name!r:.100} of a {what} is not valid Unicode") from None
    if size > NAME_BYTES_MAX:
        raise LimitError(f"a {what}'s name has {size} bytes, more than {NAME_BYTES_MAX}")
    return name


def build_header(
    layout: Mapping[str, tuple[np.dtype[np.generic], tuple[int, ...]]],
    metadata: Mapping[str, str],
) -> bytes:
    """Return the bytes before the data: the length, and the header padded to eight bytes.

    Raises:
        ProtocolError: a name or a dtype is not possible in a file.
        LimitError: there are too many tensors.
    """
    if len(layout) > TENSORS_MAX:
        raise LimitError(f"{len(layout)} tensors are more than {TENSORS_MAX}")
    tree: dict[str, object] = {_METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name, (dtype, shape) in layout.items():
        if check_name(name) == _METADATA:
            raise ProtocolError(f"{_METADATA!r} cannot be the name of a tensor")
        if dtype.name not in CODES:
            raise ProtocolError(f"tensor {name!r} has the dtype {dtype.name}, which no file holds")
        begin = offset
        offset += _extent_bytes(name, dtype, list(shape))
        tree[name] = {
            "dtype": CODES[dtype.name],
            "shape": list(shape),
            "data_offsets": [begin, offset],
        }
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_BYTES_MAX:
        raise LimitError(f"a header of {len(text)} bytes exceeds {HEADER_BYTES_MAX}")
    return len(text).to_bytes(8, "little") + text


def read_length(start: bytes, file_bytes: int, size_max: int) -> int:
    """Return the header's length from a file's first eight bytes.

    Raises:
        LimitError: the file or its header is larger than its bound.
        ProtocolError: the file is too short to be one of tensors.
    """
    if file_bytes > size_max:
        raise LimitError(f"a file of {file_bytes} bytes exceeds {size_max}")
    if len(start) < 8:
        raise ProtocolError(f"a file of {file_bytes} bytes is too short to hold tensors")
    length = int.from_bytes(start, "little")
    if length > file_bytes - 8:
        raise ProtocolError(f"the header claims {length} bytes, the file has {file_bytes - 8}")
    if length > HEADER_BYTES_MAX:
        raise LimitError(f"a header of {length} bytes exceeds {HEADER_BYTES_MAX}")
    return length


def parse_header(raw: bytes, file_bytes: int) -> Header:
    """Check a header against the format and against the size of its file.

    Raises:
        ProtocolError: it is malformed, or the extents overlap, leave gaps, or do not fit.
        LimitError: there are too many tensors, or too long names.
    """
    tree = _load(raw)
    metadata = tree.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ProtocolError("the metadata is no object of strings")
    if len(tree) > TENSORS_MAX:
        raise LimitError(f"{len(tree)} tensors are more than {TENSORS_MAX}")
    base = 8 + len(raw)
    entries = sorted((_entry(name, value) for name, value in tree.items()), key=lambda e: e[:2])
    expected = 0
    extents = {}
    for begin, end, name, dtype, shape in entries:
        if begin != expected:
            raise ProtocolError(f"tensor {name!r} begins at {begin}, expected {expected}")
        expected = end
        extents[name] = Extent(dtype=dtype, shape=shape, begin=base + begin)
    if expected != file_bytes - base:
        raise ProtocolError(f"the tensors take {expected} bytes, the file has {file_bytes - base}")
    return Header(metadata=metadata, extents=extents)


def _load(raw: bytes) -> dict[str, object]:
    if not raw.startswith(b"{"):
        raise ProtocolError("the header is no JSON object")
    marks = sum(raw.count(mark) for mark in (b'"', b"[", b"{", b","))
    if marks > _MARKS_MAX:
        raise LimitError(f"the header has {marks} parts, more than {TENSORS_MAX} tensors need")
    try:
        tree = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_no_number,
            parse_constant=_no_number,
        )
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the header is no valid JSON: {str(error)[:200]}") from None
    assert isinstance(tree, dict)
    return tree


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ProtocolError("the header has a key twice")
    return tree


def _integer(digits: str) -> int:
    if len(digits) > 19:
        raise ProtocolError(f"the header has a number of {len(digits)} digits")
    return int(digits)


def _no_number(text: str) -> NoReturn:
    raise ProtocolError(f"the header has the number {text[:40]!r}, which is no whole one")


def _entry(name: str, value: object) -> tuple[int, int, str, str, tuple[int, ...]]:
    check_name(name)
    if not isinstance(value, dict) or value.keys() != _KEYS:
        raise ProtocolError(f"tensor {name!r} has other keys than dtype, shape, data_offsets")
    dtype = _DTYPES.get(value["dtype"]) if isinstance(value["dtype"], str) else None
    if dtype is None:
        raise ProtocolError(f"tensor {name!r} has the unknown dtype {value['dtype']!r:.40}")
    size = _extent_bytes(name, dtype, value["shape"])
    offsets = value["data_offsets"]
    if not _whole_numbers(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != size:
        raise ProtocolError(f"tensor {name!r} takes {size} bytes, not {offsets!r:.60}")
    return offsets[0], offsets[1], name, dtype.name, tuple(value["shape"])


def _extent_bytes(name: str, dtype: np.dtype[np.generic], shape: object) -> int:
    if not _whole_numbers(shape):
        raise ProtocolError(f"tensor {name!r} has the shape {shape!r:.60}")
    if len(shape) > DIMENSIONS_MAX:
        raise LimitError(f"tensor {name!r} has {len(shape)} dimensions, > {DIMENSIONS_MAX}")
    span = dtype.itemsize
    for length in shape:
        span *= max(1, length)  # NumPy bounds this product even where a dimension is 0
    if span > _EXTENT_BYTES_MAX:
        raise LimitError(f"tensor {name!r} claims {span} bytes")
    return 0 if 0 in shape else span


def _whole_numbers(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
