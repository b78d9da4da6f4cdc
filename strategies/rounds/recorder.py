"""What a run leaves behind after each round, and who keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import ArrayRecord

from ..algorithms.algorithm import State
from ..algorithms.combined import ClientTable

__all__ = ["Checkpoint", "Recorder", "RoundTable", "Row"]

Row = Mapping[str, Any]
"""A round's line of metrics.jsonl: plain values only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything that the next round needs: a run that continues from it is bit-equal to one
    that was never interrupted.

    Attributes:
        state: the params, the round they are of, and the server optimizer's slots.
        best: the best round so far: "round", "metric", "mode", "value", and the round's
            "train", "evaluate" and "server"; None before the first evaluated round.
        stale_rounds: evaluated rounds since the best one (for early stopping).
        history: the rows of all rounds so far, the newest last. metrics.jsonl already holds
            them: a recorder may keep them there and read them back in `resume`. Only the
            curves of the `Result` are made of them.
    """

    state: State
    best: Mapping[str, Any] | None = None
    stale_rounds: int = 0
    history: Sequence[Row] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTable:
    """What single clients did in a round: a line of clients.jsonl."""

    round: int = 0
    train: ClientTable = field(default_factory=ClientTable)
    evaluate: ClientTable = field(default_factory=ClientTable)
    failed: Sequence[int] = ()
    late: Sequence[int] = ()
    """Those of the failed whose answers came too late, where the grid knows."""

    def line(self) -> dict[str, Any]:
        """Return the table as plain values; lists are parallel to "clients", which ascend."""
        train, evaluate = self.train.in_order(), self.evaluate.in_order()
        line: dict[str, Any] = {
            "round": self.round,
            "clients": train.clients,
            "examples": train.examples,
            "train": train.metrics,
        }
        if evaluate.clients:
            line["evaluate"] = {"clients": evaluate.clients, **evaluate.metrics}
        if self.failed:
            line["failed"] = list(self.failed)
        if self.late:
            line["late"] = list(self.late)
        return line


class Recorder(Protocol):
    """Keeps a run's checkpoints, metrics and events."""

    def resume(self) -> Checkpoint | None:
        """Return the newest intact checkpoint, or None if the run starts anew."""

    def commit(self, checkpoint: Checkpoint, row: Row, table: RoundTable) -> ArrayRecord:
        """Make a round durable, and return its params as a record over what was written.

        The record holds the same names, shapes, dtypes and values as `checkpoint.state.params`,
        and no copy of them in memory.
        """

    def event(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Receive an event; `adapter.py` lists the kinds."""
