"""The entries of a client's reply beside params, as JSON: numbers, lists and text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ConfigRecord, Message, MetricRecord, RecordDict

from ..errors import ProtocolError
from ..flower.messages import NUMPY_STYPE, TensorArray, tensor_of
from ..strategies.algorithms.metrics import Metrics, scalars_of

__all__ = ["Answer", "legacy_metrics", "text_array", "words_in"]

Answer = Mapping[str, Any]
"""{"round", "client", "type", "records": {record: {key: value}}}."""

LEGACY = ("fitres", "evaluateres")
"""What the records of Flower's older clients are called, up to the first dot."""
VALUE_CHARS_MAX = 10_000
"""A longer value is cut: the file of answers is for people."""


def words_in(reply: Message, *, everything: bool) -> dict[str, dict[str, Any]]:
    """Return a reply's text by record and key; with `everything`, its numbers and lists too.

    Edge cases: bytes are left out, and so is the status that Flower's older clients add; of arrays
        those of text are there; a value of more than 10,000 characters is cut.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, record in reply.content.items():
        if name.endswith(".status") and name.startswith(LEGACY):
            continue
        values = {key: _value(value, everything) for key, value in record.items()}
        if kept := {key: value for key, value in values.items() if value is not None}:
            found[name] = kept
    return found


def _value(value: object, everything: bool) -> Any:
    if isinstance(value, Array):
        text = text_array(value)
        return None if text is None else _cut(text)
    if isinstance(value, bytes) or (isinstance(value, list) and value[:1] and _is_bytes(value[0])):
        return None
    texts = value if isinstance(value, list) else [value]
    if everything or any(isinstance(each, str) for each in texts):
        return _cut(value)
    return None


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes)


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value[:VALUE_CHARS_MAX]
    if isinstance(value, list) and len(str(value)) > VALUE_CHARS_MAX:
        return str(value)[:VALUE_CHARS_MAX]
    return value


def text_array(array: Array) -> list[Any] | None:
    """Return an array of text as nested lists, None if it holds anything else."""
    if isinstance(array, TensorArray) or array.stype != NUMPY_STYPE:
        return None
    try:
        values = tensor_of("text", array).numpy()
    except ProtocolError:
        return None
    return np.atleast_1d(values).tolist() if values.dtype.kind == "U" else None


def legacy_metrics(content: RecordDict) -> Metrics | None:
    """Return what a client of Flower's older API reports, None if the reply is of another kind.

    Its number of examples is there under the name that today's API has for it.
    """
    prefix = next((p for p in LEGACY if f"{p}.num_examples" in content), None)
    if prefix is None:
        return None
    metrics: dict[str, Any] = {}
    for part in ("metrics", "loss", "num_examples"):
        record = content.get(f"{prefix}.{part}")
        if isinstance(record, ConfigRecord | MetricRecord):
            metrics.update(record)
    if "num_examples" in metrics:
        metrics["num-examples"] = metrics.pop("num_examples")
    return scalars_of(metrics)
