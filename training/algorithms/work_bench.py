"""The inputs of a client's work under an algorithm that does not train by gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ProtocolError
from ..settings import TrainingSettings
from ..warm_module import WarmModule

if TYPE_CHECKING:
    from ...task import ClientData, Task

__all__ = ["WorkBench"]


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
