"""What clients do under algorithms that are not the training of a whole model by gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ProtocolError
from ...strategies.algorithms.algorithm import Params
from ..settings import TrainingSettings
from ..warm_module import WarmModule
from .adapters import TrainAdapters
from .boosted_trees import GrowTrees
from .column_statistics import ColumnStatistics
from .newton_sums import NewtonSums

if TYPE_CHECKING:
    from ...task import ClientData, Data, Task

__all__ = ["WORKS", "Work", "WorkBench"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBench:
    """What a client works with; `config` is the instruction's, all of it."""

    task: Task
    data: ClientData
    client: int
    module: WarmModule
    device: str
    settings: TrainingSettings
    config: Mapping[str, Any]

    def told(self, key: str, kind: type[Any]) -> Any:
        """Return what the instruction says.

        Raises:
            ProtocolError: it does not, or something of another type.
        """
        value = self.config.get(key)
        if type(value) is not kind:
            raise ProtocolError(f"{key} must be of type {kind.__name__}, got {value!r}")
        return value


class Work(Protocol):
    """A client's half of an algorithm."""

    def answer(self, bench: WorkBench, sent: Params) -> tuple[int, dict[str, float], Params]:
        """Return the number of examples, the metrics, and what is sent back."""

    def measure(self, bench: WorkBench, sent: Params, data: Data) -> tuple[int, dict[str, float]]:
        """Return the number of examples, and the metrics of what was sent on these data."""


WORKS: Mapping[str, Work] = {
    "analytics": ColumnStatistics(),
    "lora": TrainAdapters(),
    "newton": NewtonSums(),
    "xgb_bagging": GrowTrees(whole=False),
    "xgb_cyclic": GrowTrees(whole=True),
}
