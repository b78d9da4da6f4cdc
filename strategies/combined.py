"""Replies that stand for many clients: what they report of each, in parallel lists.

A combined reply's MetricRecord has the total "num-examples", the means, the node ids as
"combined-clients", and, unless something hides them, the single clients' values as
"combined-num-examples", "combined-loss" and so on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message, MetricRecord

from .metrics import MetricMeans, Metrics

__all__ = ["CLIENTS_KEY", "EXAMPLES_KEY", "ClientTable", "clients_of", "columns_in"]

EXAMPLES_KEY = "num-examples"
CLIENTS_KEY = "combined-clients"
"""The metric of a combined reply that lists the node ids it stands for."""
PREFIX = "combined-"

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

    def record(self) -> MetricRecord:
        """Return the MetricRecord of one reply that stands for all these clients."""
        self.closed()
        means = MetricMeans()
        for place, weight in enumerate(self.examples):
            row = {name: column[place] for name, column in self.metrics.items()}
            means.add(row, weight=weight or 0.0)
        lists = {
            f"{PREFIX}{name}": [math.nan if value is None else value for value in column]
            for name, column in {EXAMPLES_KEY: self.examples, **self.metrics}.items()
        }
        record = MetricRecord({EXAMPLES_KEY: sum(weight or 0.0 for weight in self.examples)})
        for name, mean in means.means().items():
            record[name] = math.nan if mean is None else mean
        for name, values in lists.items():
            record[name] = values
        record[CLIENTS_KEY] = list(self.clients)
        return record


def columns_in(metrics: MetricRecord, clients: int) -> dict[str, list[float | None]]:
    """Return the single clients' values in a combined reply's metrics, by metric.

    Edge cases: a list of another length than `clients`, or of what is no number, is left out.
    """
    columns: dict[str, list[float | None]] = {}
    for key, values in metrics.items():
        if key == CLIENTS_KEY or not key.startswith(PREFIX) or not isinstance(values, list):
            continue
        if len(values) == clients:
            columns[key.removeprefix(PREFIX)] = [
                float(value) if math.isfinite(value) else None for value in values
            ]
    return columns


def clients_of(reply: Message) -> Sequence[int]:
    """Return the node ids that a reply of our own grid stands for."""
    if reply.has_content():
        for metrics in reply.content.metric_records.values():
            found = metrics.get(CLIENTS_KEY)
            if isinstance(found, list):
                return [int(client) for client in found]
    return (reply.metadata.src_node_id,)


def metrics_of_one(metrics: Metrics) -> Columns:
    """Return a single client's metrics as columns of one row."""
    return {name: [value] for name, value in metrics.items()}
