"""What clients do under algorithms that do not train a whole model by gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from ...strategies.algorithms.algorithm import Params
from .adapters import TrainAdapters
from .boosted_trees import GrowTrees
from .column_statistics import ColumnStatistics
from .newton_sums import NewtonSums
from .work_bench import WorkBench

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["WORKS", "LocalWork"]


class LocalWork(Protocol):
    """A client's half of an algorithm."""

    def answer(self, bench: WorkBench, sent: Params) -> tuple[int, dict[str, float], Params]:
        """Return the number of examples, the metrics, and what is sent back."""

    def measure(self, bench: WorkBench, sent: Params, data: Data) -> tuple[int, dict[str, float]]:
        """Return the number of examples, and the metrics of what was sent on these data."""


WORKS: Mapping[str, LocalWork] = {
    "analytics": ColumnStatistics(),
    "lora": TrainAdapters(),
    "newton": NewtonSums(),
    "xgb_bagging": GrowTrees(whole=False),
    "xgb_cyclic": GrowTrees(whole=True),
}
