"""The updates of an asynchronous round, from any client and of any staleness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Error, Message

from ...errors import RunError
from ...flower.messages import FlatTensor, MemoryTensor
from ..algorithms.algorithm import Aggregate, Algorithm, Params, State, Update
from ..algorithms.asynchrony import Asynchrony
from ..algorithms.combined import ClientTable
from ..algorithms.metrics import MetricMeans, Metrics
from .checks import Reply, ReplyError, fault_in, forms_of, read_reply
from .failures import failure_detail, printable
from .in_flight import OpenInstruction
from .plan import RoundPlan
from .replies import add_rows, within_norm

__all__ = ["UpdateBuffer"]

Key = tuple[int, int, int]
"""Where an update is in the canonical order: client, version, repeat."""


class UpdateBuffer:
    """Takes replies one by one until there are enough updates.

    Guarantees: the aggregate depends on the set of updates, to the last bit, not on their order.

    Attributes:
        table: what the clients of the updates reported.
        failed: the clients whose last answer here was no update, and why.
        number: the round that they make.
        failures: how many answers were no updates.
        staleness: of each update, in order of arrival.
    """

    def __init__(
        self,
        *,
        state: State,
        algorithm: Algorithm,
        asynchrony: Asynchrony,
        plan: RoundPlan,
        emit: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self.number = state.round + 1
        self._newest: Params = state.params
        self._forms = forms_of(state.params)
        self._aggregator = algorithm.aggregator
        self._asynchrony = asynchrony
        self._plan = plan
        self._emit = emit
        self._updates: dict[Key, Update] = {}
        self._means = MetricMeans()
        self.table = ClientTable()
        self.failed: dict[int, str] = {}
        self.failures = 0
        self.staleness: list[int] = []

    def __len__(self) -> int:
        return len(self._updates)

    @property
    def is_full(self) -> bool:
        """Whether there are enough updates."""
        return len(self._updates) >= self._asynchrony.buffer_size

    @property
    def contributors(self) -> list[int]:
        """The clients whose updates count, ascending."""
        return sorted({client for client, _, _ in self._updates})

    def take(self, message: Message, instruction: OpenInstruction, base: Params) -> None:
        """Check the answer to an instruction, and keep it or refuse it; this does not raise."""
        client = instruction.client
        try:
            if message.has_error():
                self.fail(client, printable(message.error.reason), message.error)
            else:
                self._keep(message, instruction, base)
        except ReplyError as error:
            detail = {"client": client, "field": error.field, "reason": error.reason}
            self._emit("update_refused", {"round": self.number, **detail})
            self.failed[client] = f"{error.field} {error.reason}"
            self.failures += 1

    def fail(self, client: int, reason: str, error: Error | None = None) -> None:
        """Note that a client will not answer."""
        self.failed[client] = reason
        self.failures += 1
        self._emit("client_failed", failure_detail(self.number, client, reason, error=error))

    def finish(self) -> Aggregate:
        """Return what the updates add up to, in their canonical order.

        Raises:
            RunError: there are none.
        """
        if not self._updates:
            raise RunError(f"round {self.number}: there are no updates to aggregate")
        ordered = [self._updates[key] for key in sorted(self._updates)]
        total = self._aggregator.fold(self._aggregator.zero(self._newest), ordered)
        return self._aggregator.finish(total)

    def metrics(self) -> Metrics:
        """Return the means of what the updates' clients report."""
        return self._means.means()

    def _keep(self, message: Message, instruction: OpenInstruction, base: Params) -> None:
        client = instruction.client
        if message.metadata.src_node_id != client:
            raise ReplyError(client, "reply", "comes from a client that was not asked")
        if not message.has_content():
            raise ReplyError(client, "reply", "is empty")
        reply = read_reply(message, forms=self._forms)
        tensors = within_norm(
            client, reply.tensors, base, self._plan, number=self.number, emit=self._emit
        )
        staleness = self.number - 1 - instruction.version
        carried = self._carried(client, tensors, self._newest if not staleness else base, staleness)
        self._add(instruction, reply, carried)
        self.staleness.append(staleness)

    def _carried(
        self, client: int, tensors: Mapping[str, FlatTensor], base: Params, staleness: int
    ) -> Mapping[str, FlatTensor]:
        weight = self._asynchrony.weighting(staleness)
        carried = self._asynchrony.carry(self._newest, base, tensors, weight)
        for name, tensor in carried.items():
            if tensor is not tensors[name] and (fault := fault_in(tensor)):
                raise ReplyError(client, f"tensor {name!r}", f"on the newest params {fault}")
        return carried

    def _add(
        self, instruction: OpenInstruction, reply: Reply, carried: Mapping[str, FlatTensor]
    ) -> None:
        key = (instruction.client, instruction.version, instruction.repeat)
        self._means.add(reply.metrics, weight=reply.weight)
        add_rows(self.table, reply)
        self._updates[key] = Update(
            client=instruction.client,
            params=carried,
            weight=reply.weight,
            metrics=reply.metrics,
            stored=not any(isinstance(each, MemoryTensor) for each in reply.tensors.values()),
        )
