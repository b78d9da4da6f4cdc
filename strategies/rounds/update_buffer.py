"""The updates of an asynchronous round, from any client and of any staleness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import Error, Message, MetricRecord

from ...errors import RunError
from ...flower.messages import FlatTensor, records_in
from ..algorithms.algorithm import Aggregate, Algorithm, Params, State, Update
from ..algorithms.asynchrony import Asynchrony
from ..algorithms.combined import ClientTable, clients_of
from ..algorithms.exact_sums import Quotient
from ..algorithms.metrics import MetricMeans, Metrics
from .checks import ReplyError, fault_in, forms_of, read_reply
from .failures import failure_detail, printable
from .in_flight import OpenInstruction
from .plan import RoundPlan
from .relayed import update_of
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
        combined: bool = False,
    ) -> None:
        """`combined`: a reply may be a relay's, which stands for several clients."""
        self.number = state.round + 1
        self._newest: Params = state.params
        self._forms = forms_of(state.params)
        self._aggregator = algorithm.aggregator
        self._asynchrony = asynchrony
        self._plan = plan
        self._emit = emit
        self._combined = combined
        self._updates: dict[Key, Update] = {}
        self._contributors: set[int] = set()
        self._means = MetricMeans()
        self.table = ClientTable()
        self.failed: dict[int, str] = {}
        self.failures = 0
        self.staleness: list[int] = []

    def __len__(self) -> int:
        return len(self.staleness)

    @property
    def is_full(self) -> bool:
        """Whether there are enough updates."""
        return len(self) >= self._asynchrony.buffer_size

    @property
    def contributors(self) -> list[int]:
        """The clients whose updates count, ascending."""
        return sorted(self._contributors)

    def take(self, message: Message, instruction: OpenInstruction, base: Params) -> None:
        """Check the answer to an instruction, and keep it or refuse it; this does not raise."""
        client = message.metadata.src_node_id
        client = client if client in instruction.clients else instruction.clients[0]
        try:
            if message.has_error():
                self.fail(client, printable(message.error.reason), message.error)
            else:
                self._keep(message, instruction, base)
        except ReplyError as error:
            detail = {"client": client, "field": error.field, "reason": error.reason}
            self._emit("update_refused", {"round": self.number, **detail})
            for each in clients_of(message) if self._combined else (client,):
                self.failed[each] = f"{error.field} {error.reason}"
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
        client = message.metadata.src_node_id
        if client not in instruction.clients:
            raise ReplyError(
                instruction.clients[0], "reply", "comes from a client that was not asked"
            )
        if not message.has_content():
            raise ReplyError(client, "reply", "is empty")
        reply = read_reply(message, forms=self._forms, combined=self._combined)
        tensors = within_norm(
            client, reply.tensors, base, self._plan, number=self.number, emit=self._emit
        )
        metrics = records_in(message.content, MetricRecord)[0]
        update = update_of(reply, metrics, tensors, client=client)
        if update.summed:
            tensors = {n: Quotient(summed, update.weight) for n, summed in tensors.items()}
        staleness = self.number - 1 - instruction.version
        carried = self._carried(client, tensors, self._newest if not staleness else base, staleness)
        if carried is not tensors:
            update = replace(update, params=carried, summed=False, rests=())
        key = (client, instruction.version, instruction.repeat)
        self._means.add(reply.metrics, weight=reply.weight)
        add_rows(self.table, reply)
        self._updates[key] = update
        self._contributors.update(reply.clients)
        self.staleness += [staleness] * len(reply.clients)

    def _carried(
        self, client: int, tensors: Mapping[str, FlatTensor], base: Params, staleness: int
    ) -> Mapping[str, FlatTensor]:
        weight = self._asynchrony.weighting(staleness)
        carried = self._asynchrony.carry(self._newest, base, tensors, weight)
        for name, tensor in carried.items():
            if tensor is not tensors[name] and (fault := fault_in(tensor)):
                raise ReplyError(client, f"tensor {name!r}", f"on the newest params {fault}")
        return carried
