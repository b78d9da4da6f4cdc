"""How many examples clients have: asked of each once, before its first instruction."""

from __future__ import annotations

import numpy as np
from flwr.app import MessageType, RecordDict
from numpy.typing import NDArray

from ...strategies.rounds.broadcast import Broadcast
from ..executors.contract import Executor

__all__ = ["ExampleCounts"]

KEYS = {MessageType.TRAIN: "num-examples", MessageType.EVALUATE: "num-test-examples"}
"""What a Meadow client answers to a query, by the kind of instruction that needs it."""
UNKNOWN = 0.0
"""Counts are kept one higher: memory that nobody has written to is none yet."""


class ExampleCounts:
    """The numbers of examples of a simulation's clients; eight bytes a client.

    Edge cases: a client without a count, or whose data fail to load, counts as `otherwise`.
    """

    def __init__(self, executor: Executor | None, clients: int, *, otherwise: int) -> None:
        """Without an executor nobody is asked: an app of others may not know queries."""
        self._executor = executor
        self._otherwise = float(otherwise)
        self._counts = {
            kind: np.zeros(clients + 1, np.float32) for kind in (KEYS if executor else ())
        }

    def of(self, kind: str, ids: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return how many examples an instruction of this kind is about, for each client.

        Edge cases: 0 for what is neither training nor evaluation.
        """
        if kind not in KEYS:
            return np.zeros(len(ids))
        if self._executor is None:
            return np.full(len(ids), self._otherwise)
        counts = self._counts[kind]
        places = np.where((ids >= 1) & (ids < len(counts)), ids, 0)
        self._ask(self._executor, places[counts[places] == UNKNOWN])
        return counts[places].astype(np.float64) - 1

    def _ask(self, executor: Executor, unknown: NDArray[np.integer]) -> None:
        for counts in self._counts.values():
            counts[unknown] = self._otherwise + 1
        clients = np.unique(unknown[unknown > 0]).tolist()
        if not clients:
            return
        question = Broadcast(RecordDict(), MessageType.QUERY, clients, group_id="").numbered("n-")
        for reply in executor.execute(question):
            if not reply.has_content():
                continue  # it will fail again when it is to train
            for metrics in reply.content.metric_records.values():
                for kind, key in KEYS.items():
                    value = metrics.get(key)
                    if isinstance(value, int | float) and value >= 0:
                        self._counts[kind][reply.metadata.src_node_id] = value + 1
