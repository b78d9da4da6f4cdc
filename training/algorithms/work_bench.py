"""What clients do under algorithms that do not train a whole model by gradients, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ProtocolError
from ...strategies.algorithms.algorithm import Params
from ..settings import TrainingSettings
from ..warm_module import WarmModule

if TYPE_CHECKING:
    from ...task import ClientData, Data, Task

__all__ = ["LocalWork", "WorkBench"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBench:
    """The inputs of a client's work; `config` is the whole configuration of the instruction."""

    task: Task
    data: ClientData
    client: int
    module: WarmModule
    device: str
    settings: TrainingSettings
    config: Mapping[str, Any]

    def configured(self, key: str, kind: type[Any]) -> Any:
        """Return an entry of the instruction's config.

        Raises:
            ProtocolError: the entry is missing, or of another type.
        """
        value = self.config.get(key)
        if type(value) is not kind:
            raise ProtocolError(f"{key} must be of type {kind.__name__}, got {value!r}")
        return value


class LocalWork:
    """A client's half of such an algorithm."""

    def answer(self, bench: WorkBench, sent: Params) -> tuple[int, dict[str, float], Params]:
        """Return the number of examples, the metrics, and what is sent back."""
        raise NotImplementedError

    def measure(self, bench: WorkBench, sent: Params, data: Data) -> tuple[int, dict[str, float]]:
        """Return the number of examples, and the metrics of what was sent on these data."""
        raise NotImplementedError
