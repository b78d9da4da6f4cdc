"""The one place that knows Flower's corners; everything else uses its public names.

Two things live here. `TensorArray` is a Flower `Array` over memory that already exists (an
array, or a file that is mapped), so that building a record costs no copy. The rest are the few
steps that Flower leaves to the runner of an app: who this process is, and how a message that
came over a wire is put together again.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import ml_dtypes
import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from ..errors import ProtocolError

__all__ = [
    "NUMPY_STYPE",
    "FlatTensor",
    "StoredParams",
    "TensorArray",
    "arrays_to_params",
    "content_bytes",
    "copy_for",
    "dtype_of",
    "extended",
    "identify_process",
    "metrics_record",
    "own_copy",
    "params_in",
    "params_to_arrays",
    "rebuild_message",
    "record_dict",
    "record_of",
    "records_in",
    "reply_with",
    "sender_of",
    "set_message_id",
    "tensor_of",
    "tensors_of",
    "values_in",
]

Record = TypeVar("Record", ArrayRecord, MetricRecord, ConfigRecord)

NUMPY_STYPE = "numpy.ndarray"
"""Flower's name for an array that NumPy can read."""


@runtime_checkable
class FlatTensor(Protocol):
    """A tensor that is read in slices of its flattened values, from memory or from a file.

    Shapes: `tensor[a:b]` is a 1-D array of `b - a` values in row-major order.
    """

    @property
    def dtype(self) -> np.dtype[np.generic]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, values: slice) -> NDArray[np.generic]: ...
    def numpy(self) -> NDArray[np.generic]: ...


class MemoryTensor:
    """A `FlatTensor` over an array in memory."""

    __slots__ = ("_array", "_flat")

    def __init__(self, array: NDArray[np.generic]) -> None:
        if type(array) is not np.ndarray or not array.flags.c_contiguous:
            array = np.ascontiguousarray(array).reshape(array.shape)
        self._array: NDArray[np.generic] = array
        self._flat = self._array.reshape(-1)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return self._array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    def __getitem__(self, values: slice) -> NDArray[np.generic]:
        return self._flat[values]

    def numpy(self) -> NDArray[np.generic]:
        return self._array


class TensorArray(Array):
    """A Flower `Array` that holds a tensor instead of its serialised bytes.

    `tensor` is the values without a copy. `numpy()` is a copy, as Flower's own is: its strategies,
    wrappers and apps write into it. `data`, Flower's serialised form, is made only if somebody
    asks for it. Works for bfloat16 and the 8-bit floats too (by `ml_dtypes`).
    """

    def __init__(self, tensor: FlatTensor | NDArray[np.generic]) -> None:
        held = MemoryTensor(tensor) if isinstance(tensor, np.ndarray) else tensor
        self.__dict__["tensor"] = held
        self.__dict__["dtype"] = _name_of(held.dtype)
        self.__dict__["shape"] = tuple(held.shape)
        self.__dict__["stype"] = NUMPY_STYPE

    @property
    def tensor(self) -> FlatTensor:
        """The values, sliceable without loading all of them."""
        return cast(FlatTensor, self.__dict__["tensor"])

    def numpy(self) -> NDArray[np.generic]:
        """Return the values as an array of `shape` that belongs to the caller."""
        return np.array(self.tensor.numpy())

    def deflate(self) -> bytes:
        """Return what Flower sends: that of a plain `Array`, the only kind that it takes apart."""
        plain = Array(self.dtype, self.shape, self.stype, self.data)
        plain.__dict__["_chunks"] = self.slice_array()
        return plain.deflate()

    def __reduce__(self) -> tuple[type[TensorArray], tuple[NDArray[np.generic]]]:
        """Let Ray or `copy` rebuild it from its values: a mapped file stays where it is."""
        return TensorArray, (np.asarray(self.tensor.numpy()),)

    @property
    def data(self) -> bytes:  # type: ignore[override]  # Flower's is a plain attribute
        """Flower's serialised form (.npy), made on demand."""
        if "_data" not in self.__dict__:
            buffer = BytesIO()
            np.save(buffer, self.tensor.numpy(), allow_pickle=False)
            self.__dict__["_data"] = buffer.getvalue()
        return cast(bytes, self.__dict__["_data"])


@lru_cache(maxsize=64)  # NumPy makes the name anew each time
def _name_of(dtype: np.dtype[np.generic]) -> str:
    return dtype.name


def dtype_of(name: str) -> np.dtype[np.generic]:
    """Return the NumPy dtype called `name`, bfloat16 and the 8-bit floats included.

    Raises:
        ProtocolError: `name` is not a numeric or boolean dtype.
    """
    try:
        dtype: np.dtype[np.generic] = np.dtype(cast(str, getattr(ml_dtypes, name, name)))
    except (TypeError, ValueError, SyntaxError):
        raise ProtocolError(f"unknown dtype {name!r}") from None
    if dtype.hasobject or (dtype.kind not in "biufc" and dtype.name not in dir(ml_dtypes)):
        raise ProtocolError(f"dtype {name!r} is not numeric or boolean")
    return dtype


def tensors_of(arrays: ArrayRecord) -> dict[str, FlatTensor]:
    """Return the record's tensors by name, without a copy where they are held unserialised.

    Raises:
        ProtocolError: an array is not a NumPy one (bytes of another library, for instance), or
            its bytes are not a plain .npy: pickles and object arrays are never loaded.
    """
    return {name: tensor_of(name, array) for name, array in values_in(arrays).items()}


def tensor_of(name: str, array: Array) -> FlatTensor:
    """Return the tensor in an array that is called `name`; see `tensors_of`."""
    if isinstance(array, TensorArray):
        return array.tensor
    if array.stype != NUMPY_STYPE:
        raise ProtocolError(f"array {name!r} is {array.stype!r}, not {NUMPY_STYPE!r}")
    try:
        values = _read_npy(array.data)
    except Exception as error:  # NumPy raises many kinds on malformed input
        raise ProtocolError(f"array {name!r} cannot be read: {error}") from None
    if values.dtype.kind == "V":  # .npy has no name for bfloat16; the record has
        dtype = dtype_of(array.dtype)
        if dtype.itemsize != values.dtype.itemsize:
            raise ProtocolError(f"array {name!r} says {array.dtype!r}, its bytes disagree")
        values = values.view(dtype)
    if values.dtype.hasobject:
        raise ProtocolError(f"array {name!r} holds Python objects")
    return MemoryTensor(values)


def _read_npy(data: bytes) -> NDArray[np.generic]:
    """Return a read-only view of the array in the bytes of a .npy file, without a copy."""
    stream = BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        stream.seek(0)
        return np.asarray(np.load(stream, allow_pickle=False))
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    flat = np.frombuffer(data, dtype, math.prod(shape), stream.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def arrays_to_params(arrays: ArrayRecord) -> dict[str, NDArray[np.generic]]:
    """Return the record's arrays by name (read-only views where possible).

    Raises:
        ProtocolError: as `tensors_of`.
    """
    return {name: tensor_of(name, array).numpy() for name, array in values_in(arrays).items()}


class StoredParams(Mapping[str, NDArray[np.generic]]):
    """Params that are in files: arrays by name, each mapped, or read, when it is asked for.

    Attributes:
        tensors: the same, to be read in slices, which takes no memory.
    """

    def __init__(self, tensors: Mapping[str, FlatTensor]) -> None:
        self.tensors = dict(tensors)

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        return self.tensors[name].numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def params_in(arrays: ArrayRecord) -> Mapping[str, NDArray[np.generic]]:
    """Return the record's params by name: where all are in files, they stay there.

    Raises:
        ProtocolError: as `tensors_of`.
    """
    tensors = tensors_of(arrays)
    if any(isinstance(tensor, MemoryTensor) for tensor in tensors.values()):
        return {name: tensor.numpy() for name, tensor in tensors.items()}
    return StoredParams(tensors)


def params_to_arrays(params: Mapping[str, NDArray[np.generic] | FlatTensor]) -> ArrayRecord:
    """Return a record over `params`, in their order, without copying them."""
    if isinstance(params, StoredParams):
        params = params.tensors
    return record_of({name: TensorArray(value) for name, value in params.items()})


def record_of(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Return a record of these very arrays; Flower's constructor would serialise and copy them, and
    its item by item looks at each several times."""
    return _holding(_ARRAYS, dict(arrays))


def extended(config: ConfigRecord, more: Mapping[str, float | int | str | bool]) -> ConfigRecord:
    """Return a record of what `config` has, and of `more` beside or instead; Flower's constructor
    would look at each of its values again."""
    record = _holding(config, dict(config.__dict__["_data"]))
    for key, value in more.items():
        record[key] = value
    return record


def own_copy(content: RecordDict) -> RecordDict:
    """Return a content's records for one client, which may change them: what clients were sent
    together they must not share. Arrays are the same, and read-only."""
    records = content.__dict__["_data"].items()
    own = {name: _holding(each, dict(each.__dict__["_data"])) for name, each in records}
    return _holding(content, own)


def record_dict(records: Mapping[str, ArrayRecord | MetricRecord | ConfigRecord]) -> RecordDict:
    """Return a content of these very records; Flower's constructor looks at each several times."""
    return _holding(_CONTENT, dict(records))


def metrics_record(metrics: Mapping[str, float | int]) -> MetricRecord:
    """Return a record of our own single numbers, which Flower's constructor would look at again."""
    return _holding(_METRICS, dict(metrics))


Held = TypeVar("Held", ArrayRecord, MetricRecord, ConfigRecord, RecordDict)
_ARRAYS, _METRICS, _CONTENT = ArrayRecord(), MetricRecord(), RecordDict()


def _holding(like: Held, data: dict[str, Any]) -> Held:
    """Return a record like another one, of these very values."""
    made = object.__new__(type(like))
    checks = like.__dict__
    made.__dict__.update(
        _check_key_fn=checks["_check_key_fn"], _check_value_fn=checks["_check_value_fn"], _data=data
    )
    return made


def records_in(content: RecordDict, kind: type[Record]) -> list[Record]:
    """Return a content's records of one kind; Flower's own views of them copy what they show."""
    records = content.__dict__["_data"].values()
    return [record for record in records if kind in type(record).__mro__]  # ABCs ask slowly


def content_bytes(message: Message) -> int:
    """Return the bytes of the tensors in a message."""
    if not message.has_content():
        return 0
    total = 0
    for record in records_in(message.content, ArrayRecord):
        for array in record.__dict__["_data"].values():
            if isinstance(array, TensorArray):
                total += math.prod(array.shape) * array.tensor.dtype.itemsize
            else:
                total += len(array.data)
    return total


def values_in(record: ArrayRecord | MetricRecord | ConfigRecord) -> Mapping[str, Any]:
    """Return a record's values by key, not to be changed; each of a record's own methods takes longer."""
    values: Mapping[str, Any] = record.__dict__["_data"]
    return values


def sender_of(message: Message) -> int:
    """Return the node that a message is from, as `message.metadata.src_node_id` in less time."""
    node_id: int = message.__dict__["_metadata"].__dict__["_src_node_id"]
    return node_id


def identify_process(*, run_id: int, node_id: int, quiet: bool = True) -> None:
    """Tell Flower who this process is: `Message()` inside its strategies needs to know.

    One process runs one run. A `quiet` one logs nothing of Flower's below a warning; a plain
    Flower app's is not.
    """
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = node_id
    TaskIdentity.task_id = run_id
    logging.getLogger("flwr").setLevel(logging.WARNING if quiet else logging.DEBUG)


def copy_for(message: Message, node_id: int) -> Message:
    """Return the same message, which has no id yet, for another node; Flower's constructor looks at each
    of its arguments several times."""
    return _altered(message, message.content, _dst_node_id=node_id)


def reply_with(content: RecordDict, message: Message) -> Message:
    """Return what `Message(content, reply_to=message)` does: as `copy_for`, without its checks."""
    asked, now_s = message.metadata.__dict__, time.time()
    return _altered(
        message,
        content,
        _message_id="",
        _src_node_id=asked["_dst_node_id"],
        _dst_node_id=asked["_src_node_id"],
        _reply_to_message_id=asked["_message_id"],
        _created_at=now_s,
        _ttl=asked["_created_at"] + asked["_ttl"] - now_s,
        _src_task_id=asked["_dst_task_id"],
        _dst_task_id=asked["_src_task_id"],
        _delivered_at="",
    )


def _altered(message: Message, content: RecordDict, **fields: object) -> Message:
    metadata, made = Metadata.__new__(Metadata), Message.__new__(Message)
    metadata.__dict__.update(message.metadata.__dict__, **fields)
    made.__dict__.update(_metadata=metadata, _content=content, _error=None)
    return made


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, which its sender has to do."""
    message.metadata.__dict__["_message_id"] = message_id


def rebuild_message(metadata: Metadata, content: RecordDict | Error) -> Message:
    """Put together a message that came from a wire or from disk."""
    if isinstance(content, Error):
        return Message(error=content, metadata=metadata)  # type: ignore[call-overload,no-any-return]
    return Message(content=content, metadata=metadata)  # type: ignore[call-overload,no-any-return]
