"""What a client's reply must be before any of it counts.

A reply comes from somebody else's machine: every field of it is checked, against the params that
were sent and against fixed bounds, before it is used. Serialised Python objects are never loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as short
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from ...errors import ProtocolError, UpdateError
from ...flower.messages import (
    NUMPY_STYPE,
    FlatTensor,
    TensorArray,
    records_in,
    sender_of,
    tensor_of,
    values_in,
)
from ..algorithms.algorithm import Params
from ..algorithms.combined import CLIENTS_KEY, EXAMPLES_KEY, columns_in, metrics_of_one
from ..algorithms.metrics import Metrics, scalars_of

__all__ = [
    "CLIENTS_KEY",
    "EXAMPLES_KEY",
    "EXAMPLES_MAX",
    "Forms",
    "Reply",
    "ReplyError",
    "TensorForm",
    "fault_in",
    "forms_of",
    "read_reply",
]

EXAMPLES_MAX = 1e9
"""Examples that one client may claim."""
METRICS_MAX = 256
METRIC_NAME_CHARS_MAX = 128
MAGNITUDE_MAX = 1e290
"""Larger float64 values would overflow when they are added up."""
NPY_HEADER_BYTES_MAX = 65_536 + 12
BLOCK = 65_536


class ReplyError(UpdateError):
    """A reply is refused: whose, which field of it, and why."""

    def __init__(self, client: int, field: str, reason: str) -> None:
        super().__init__(f"client {client}: {field} {reason}")
        self.client = client
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What a tensor must look like."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    length_max: int | None = None
    """It has one dimension, of any length up to this."""
    wide: bool = False
    """It is a mean of several clients', which may not have been rounded yet."""

    @property
    def size(self) -> int:
        """The most values that it may have."""
        return math.prod(self.shape) if self.length_max is None else self.length_max

    def has(self, dtype: np.dtype[Any]) -> bool:
        """Return whether a tensor may have this dtype."""
        if dtype == self.dtype:
            return True
        return self.wide and dtype == (np.complex128 if self.dtype.kind == "c" else np.float64)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor may have this shape."""
        if self.length_max is None:
            return shape == self.shape
        return len(shape) == 1 and 0 < shape[0] <= self.length_max

    def __str__(self) -> str:
        if self.length_max is not None:
            return f"{self.dtype.name} (1 to {self.length_max},)"
        return f"{self.dtype.name} {self.shape}"


Forms = Mapping[str, TensorForm]
"""What a reply's tensors must look like, by name."""


def forms_of(params: Params, lengths_max: Mapping[str, int] | None = None) -> Forms:
    """Return the forms of the params that were sent; some may come back of any length."""
    longest = lengths_max or {}
    return {
        n: TensorForm(values.shape, values.dtype, longest.get(n)) for n, values in params.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply that has passed all checks.

    `clients` are the node ids that it stands for: the sender alone, unless it is combined.
    `tensors` is empty in a reply to an evaluation. `columns` are the single clients' values, if
    they are known: "num-examples" and the metrics, each parallel to `clients`.
    """

    weight: float
    metrics: Metrics
    clients: tuple[int, ...]
    tensors: Mapping[str, FlatTensor]
    columns: Mapping[str, Sequence[float | None]]


def read_reply(message: Message, *, forms: Forms | None, combined: bool = False) -> Reply:
    """Check a reply and return its content.

    `forms` are those of the params that were sent, None if the reply needs no tensors. `combined`
    says that the grid adds replies up: then they may list the clients that they stand for.

    Raises:
        ReplyError: the reply is not what it should be; it names the client and the field.
    """
    client = sender_of(message)
    record = _only(client, message, MetricRecord, "MetricRecord")
    metrics = values_in(record)
    clients = _clients(client, metrics) if combined else (client,)
    weight = _examples(client, metrics, maximum=EXAMPLES_MAX * len(clients))
    tensors: Mapping[str, FlatTensor] = {}
    if forms is not None:
        if combined and CLIENTS_KEY in metrics:
            forms = {name: replace(form, wide=True) for name, form in forms.items()}
        arrays = _only(client, message, ArrayRecord, "ArrayRecord")
        tensors = _tensors(client, values_in(arrays), forms)
        for name, tensor in tensors.items():
            if fault := fault_in(tensor):
                raise ReplyError(client, f"tensor {name!r}", fault)
    if len(metrics) > METRICS_MAX:
        raise ReplyError(client, "metrics", f"must be at most {METRICS_MAX}, are {len(metrics)}")
    for name in metrics:
        if len(name) > METRIC_NAME_CHARS_MAX or not name.isprintable():
            raise ReplyError(client, "metrics", f"must have short plain names, got {short(name)}")
    reported = scalars_of(metrics)
    reported.pop(EXAMPLES_KEY)
    columns = (
        columns_in(record)
        if len(clients) > 1
        else {EXAMPLES_KEY: [weight], **metrics_of_one(reported)}
    )
    return Reply(weight=weight, metrics=reported, clients=clients, tensors=tensors, columns=columns)


def _only(client: int, message: Message, kind: type[Any], name: str) -> Any:
    records = records_in(message.content, kind)
    if len(records) != 1:
        raise ReplyError(client, "content", f"must have one {name}, has {len(records)}")
    return records[0]


def _examples(client: int, metrics: Mapping[str, Any], *, maximum: float) -> float:
    value = metrics.get(EXAMPLES_KEY)
    if value is None:
        raise ReplyError(client, EXAMPLES_KEY, "is missing")
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= maximum  # NaN is refused here too
    ):
        raise ReplyError(
            client,
            EXAMPLES_KEY,
            f"must be a number > 0 and <= {maximum:g}, got {short(value)}",
        )
    return float(value)


def _clients(client: int, metrics: Mapping[str, Any]) -> tuple[int, ...]:
    value = metrics.get(CLIENTS_KEY)
    if value is None:
        return (client,)
    valid = isinstance(value, list) and all(type(entry) is int for entry in value)
    if not valid or client not in value or len(set(value)) != len(value):
        raise ReplyError(
            client, CLIENTS_KEY, f"must list the sender and others once, got {short(value)}"
        )
    return tuple(value)


def _tensors(client: int, arrays: Mapping[str, Array], forms: Forms) -> dict[str, FlatTensor]:
    """Return a reply's tensors if their names, shapes and dtypes are those that were sent."""
    if missing := forms.keys() - arrays.keys():
        raise ReplyError(client, f"tensor {min(missing)!r}", "is missing")
    if extra := arrays.keys() - forms.keys():
        raise ReplyError(client, f"tensor {short(min(extra))}", "is not one of the model's")
    for name, form in forms.items():
        if not isinstance(arrays[name], TensorArray):
            _check_serialised(client, name, arrays[name], form)
    tensors: dict[str, FlatTensor] = {}
    for name, form in forms.items():
        try:
            tensors[name] = tensor = tensor_of(name, arrays[name])
        except ProtocolError as error:
            raise ReplyError(client, "arrays", f"cannot be read: {error}") from None
        if not form.fits(tensor.shape) or not form.has(tensor.dtype):
            found = f"{tensor.dtype.name} {short(tensor.shape)}"
            raise ReplyError(client, f"tensor {name!r}", f"must be {form}, is {found}")
    return tensors


def _check_serialised(client: int, name: str, array: Array, form: TensorForm) -> None:
    """Check an array's declared dtype, shape and size, before its bytes are read."""
    if array.stype != NUMPY_STYPE:
        found = short(array.stype)
        raise ReplyError(client, f"tensor {name!r}", f"must be {NUMPY_STYPE!r}, is {found}")
    if not form.fits(tuple(array.shape)) or array.dtype != form.dtype.name:
        found = f"{short(array.dtype)} {short(tuple(array.shape))}"
        raise ReplyError(client, f"tensor {name!r}", f"must be {form}, is {found}")
    size_max = form.size * form.dtype.itemsize + NPY_HEADER_BYTES_MAX
    if len(array.data) > size_max:
        found = f"{len(array.data)} bytes"
        raise ReplyError(client, f"tensor {name!r}", f"must be {form}, has {found}")


def fault_in(tensor: FlatTensor) -> str | None:
    """Say what is wrong with a tensor's values: not finite, or too large to be added up."""
    dtype = tensor.dtype
    if dtype.kind in "biu":
        return None
    for start in range(0, math.prod(tensor.shape), BLOCK):
        values: NDArray[Any] = tensor[start : start + BLOCK]
        if dtype.kind == "c":
            values = values.view(values.real.dtype)
        if values.dtype.char not in "fd":  # float32, float64
            values = values.astype(np.float32)
        squares = np.vdot(values, values)  # one fast pass: finite if every value is; dot() warns
        if math.isfinite(squares):
            continue
        if not np.isfinite(values).all():
            return "has values that are not finite"
        if values.dtype == np.float64 and np.abs(values).max() > MAGNITUDE_MAX:
            return f"has values beyond {MAGNITUDE_MAX:g}"
    return None
