"""Replies that stand for many clients, and what is known of each of them.

A combined reply's MetricRecord has the total "num-examples", the means, and the node ids as
"combined-clients". Where it is made in the server's own process it also has the single clients'
values, as a `ClientTable`; they never travel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from flwr.app import Message, MetricRecord

from ...flower.messages import FlatTensor, records_in
from .metrics import MetricOfMeans, Metrics, computed

__all__ = [
    "CLIENTS_KEY",
    "EXAMPLES_KEY",
    "ClientTable",
    "SummedRecord",
    "clients_of",
    "columns_in",
]

EXAMPLES_KEY = "num-examples"
CLIENTS_KEY = "combined-clients"
"""The metric of a combined reply that lists the node ids it stands for."""
Columns = Mapping[str, Sequence[float | None]]


@dataclass(slots=True)
class ClientTable:
    """What single clients reported in a round: a row a client."""

    clients: list[int] = field(default_factory=list)
    examples: list[float | None] = field(default_factory=list)
    metrics: dict[str, list[float | None]] = field(default_factory=dict)

    def add(
        self, clients: Sequence[int], examples: Sequence[float | None], metrics: Columns
    ) -> None:
        """Add rows; a metric that only some report is None for the others."""
        before = len(self.clients)
        self.clients.extend(clients)
        self.examples.extend(examples)
        for name, values in metrics.items():
            column = self.metrics.setdefault(name, [])
            column.extend([None] * (before - len(column)))
            column.extend(values)

    def closed(self) -> ClientTable:
        """Return the table with columns of equal length."""
        for column in self.metrics.values():
            column.extend([None] * (len(self.clients) - len(column)))
        return self

    def compute(self, additive: Mapping[str, MetricOfMeans]) -> None:
        """Put each client's value of an additive metric in the place of its means."""
        if not self.closed().metrics:
            return
        names = list(self.metrics)
        rows = zip(*self.metrics.values(), strict=True)
        made = [computed(dict(zip(names, row, strict=True)), additive) for row in rows]
        self.metrics = {name: [row[name] for row in made] for name in (made[0] if made else ())}

    def in_order(self) -> ClientTable:
        """Return the table with its rows in the canonical order of the clients."""
        self.closed()
        order = sorted(range(len(self.clients)), key=self.clients.__getitem__)
        if order == list(range(len(order))):
            return self
        return ClientTable(
            [self.clients[row] for row in order],
            [self.examples[row] for row in order],
            {name: [column[row] for row in order] for name, column in self.metrics.items()},
        )

    def record(self) -> MetricRecord:
        """Return the MetricRecord of one reply that stands for all these clients."""
        self.closed()
        weights = [weight or 0.0 for weight in self.examples]
        record = CombinedRecord({EXAMPLES_KEY: math.fsum(weights)})
        for name in sorted(self.metrics):
            record[name] = _mean(self.metrics[name], weights)
        record[CLIENTS_KEY] = list(self.clients)
        record.table = self
        return record


class SummedRecord(MetricRecord):
    """A MetricRecord of a relay's reply, whose tensors are sums, not means; it knows what rounding
    took from them."""

    weights: Sequence[float]
    """Numbers with exactly the sum of the clients' weights."""
    rests: Mapping[str, FlatTensor]
    """"positions" (int64, in the row of all tensors, ascending) and "values" (float64)."""


class CombinedRecord(MetricRecord):
    """A MetricRecord that knows the single clients' values."""

    table: ClientTable


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float:
    terms = [
        (weight, weight * value)
        for weight, value in zip(weights, values, strict=True)
        if value is not None and math.isfinite(value)
    ]
    counted, products = zip(*terms, strict=True) if terms else ((), ())
    total = math.fsum(counted)
    return math.fsum(products) / total if total else math.nan


def columns_in(metrics: MetricRecord) -> dict[str, Sequence[float | None]]:
    """Return the single clients' values of a combined reply, by metric, if they are known."""
    if not isinstance(metrics, CombinedRecord):
        return {}
    table = metrics.table
    return {EXAMPLES_KEY: table.examples, **table.metrics}


def clients_of(reply: Message) -> Sequence[int]:
    """Return the node ids that a reply of our own grid stands for."""
    if reply.has_content():
        for metrics in records_in(reply.content, MetricRecord):
            found = metrics.get(CLIENTS_KEY)
            if isinstance(found, list):
                return cast(Sequence[int], found)
    return (reply.metadata.src_node_id,)


def metrics_of_one(metrics: Metrics) -> Columns:
    """Return a single client's metrics as columns of one row."""
    return {name: [value] for name, value in metrics.items()}
