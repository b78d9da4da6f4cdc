"""Which round was the best, and whether a run still gets better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ...errors import ConfigError
from ..algorithms.bounds import require_choice, require_whole

if TYPE_CHECKING:  # it imports flwr, for which no command line need wait
    from .recorder import Row

__all__ = ["EarlyStopping", "Progress"]

Mode = Literal["min", "max"]
PARTS = ("train", "evaluate", "server")

PREFERRED: tuple[tuple[str, Mode], ...] = (
    ("server.accuracy", "max"),
    ("evaluate.accuracy", "max"),
    ("server.loss", "min"),
    ("evaluate.loss", "min"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStopping:
    """Stop when a metric has not improved for `patience` evaluated rounds.

    Attributes:
        metric: "train.", "evaluate." or "server.", and a metric's name: "evaluate.loss".
        mode: whether less ("min") or more ("max") is better.
        patience: evaluated rounds without a better value, >= 1.
    """

    metric: str = "evaluate.loss"
    mode: Literal["min", "max"] = "min"
    patience: int = 5

    def __post_init__(self) -> None:
        part, dot, name = self.metric.partition(".")
        if part not in PARTS or not dot or not name:
            raise ConfigError(
                "early_stopping.metric must be train., evaluate. or server. and a metric's "
                f"name, got {self.metric!r}"
            )
        require_choice("early_stopping.mode", self.mode, ("min", "max"))
        require_whole("early_stopping.patience", self.patience, at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The best round so far, and the evaluated rounds since.

    What is compared is the metric of early stopping, if that is on. Otherwise it is the first
    of `PREFERRED` that the first evaluated round has, and it stays the same for the whole run.
    """

    best: Mapping[str, Any] | None = None
    stale_rounds: int = 0

    def after(self, row: Row, early_stopping: EarlyStopping | None) -> Progress:
        """Return the progress after one more round.

        Edge cases: a round without the metric (one that was not evaluated) changes nothing; a
            value that is not finite is no improvement; of equal values, the first counts.
        Raises:
            ConfigError: early stopping watches a metric that an evaluated round does not have.
        """
        metric, mode = self._watched(row, early_stopping)
        part, _, name = metric.partition(".")
        if name not in row[part]:
            return self
        value = row[part][name]
        if not _is_better(value, self.best["value"] if self.best else None, mode):
            return Progress(best=self.best, stale_rounds=self.stale_rounds + 1)
        parts = {key: row[key] for key in PARTS}
        best = {"round": row["round"], "metric": metric, "mode": mode, "value": value, **parts}
        return Progress(best=best)

    def is_exhausted(self, early_stopping: EarlyStopping | None) -> bool:
        """Return whether early stopping ends the run here."""
        return early_stopping is not None and self.stale_rounds >= early_stopping.patience

    def explain(self, early_stopping: EarlyStopping | None) -> str:
        """Say why early stopping ended the run."""
        if early_stopping is None or self.best is None:
            return f"nothing improved in {self.stale_rounds} evaluated rounds"
        return (
            f"{early_stopping.metric} has not improved in {self.stale_rounds} evaluated rounds: "
            f"its best was {self.best['value']:g} in round {self.best['round']}"
        )

    def _watched(self, row: Row, early_stopping: EarlyStopping | None) -> tuple[str, Mode]:
        if early_stopping is not None:
            part, _, name = early_stopping.metric.partition(".")
            if row[part] and name not in row[part]:
                raise ConfigError(
                    f"early_stopping.metric is {early_stopping.metric!r}, but there is only "
                    + ", ".join(f"{part}.{known}" for known in row[part])
                )
            return early_stopping.metric, early_stopping.mode
        if self.best is not None:
            return self.best["metric"], self.best["mode"]
        for metric, mode in PREFERRED:
            part, _, name = metric.partition(".")
            if name in row[part]:
                return metric, mode
        return PREFERRED[-1]


def _is_better(value: float | None, best: float | None, mode: Mode) -> bool:
    """Compare two values of a metric; None, not finite, is worse than any number."""
    if value is None or best is None:
        return value is not None
    return value < best if mode == "min" else value > best
