"""A round's replies: which clients answered, which replies are valid, and their aggregate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from flwr.app import Error, Message, MessageType, MetricRecord

from ...errors import NOTHING_TO_EVALUATE, QuorumError
from ...flower.messages import FlatTensor, records_in, sender_of
from ..algorithms.algorithm import Aggregate, Algorithm, Params, Update
from ..algorithms.canonical import CanonicalFold
from ..algorithms.combined import EXAMPLES_KEY, ClientTable, clients_of
from ..algorithms.metrics import MetricMeans, Metrics
from ..algorithms.norms import clip_delta, delta_norm_l2
from .checks import Reply, ReplyError, forms_of, read_reply
from .failures import NameOf, failure_detail, named, printable
from .plan import RoundPlan
from .relayed import update_of

__all__ = [
    "Emit",
    "TrainingReplies",
    "add_rows",
    "collect_evaluation",
    "within_norm",
]

Emit = Callable[[str, Mapping[str, Any]], None]
"""Passes an event on: its kind, and its details."""


class TrainingReplies:
    """Takes one round's replies, in any order, and folds the valid ones.

    Attributes:
        cohort: the clients that were asked, ascending.
        contributors: the clients whose updates count, ascending.
        table: what each of them reported.
        failures: who failed, and why.
    """

    def __init__(
        self,
        *,
        number: int,
        cohort: Iterable[int],
        params: Params,
        algorithm: Algorithm,
        plan: RoundPlan,
        quorum: int,
        combined: bool,
        reports: bool = True,
        emit: Emit,
        name_of: NameOf = lambda client: None,
    ) -> None:
        """Without `reports`, metrics of single clients are not kept."""
        self._number = number
        self._cohort = frozenset(cohort)
        self._open = set(self._cohort)
        self._params = params
        self._forms = forms_of(params, algorithm.lengths_max)
        self._fault = algorithm.fault
        self._plan = plan
        self._quorum = quorum
        self._combined = combined
        self._reports = reports and algorithm.reports
        self._emit = emit
        self._name_of = name_of
        self._fold = CanonicalFold(algorithm.aggregator, params, self._cohort)
        self._means = MetricMeans()
        self.failures: dict[int, str] = {}
        self.table = ClientTable()
        self._contributors: set[int] = set()

    @property
    def cohort(self) -> list[int]:
        return sorted(self._cohort)

    @property
    def contributors(self) -> list[int]:
        return sorted(self._contributors)

    def take(self, message: Message) -> None:
        """Check a reply, and fold it or refuse it; no content of a reply makes this raise."""
        client = sender_of(message)
        try:
            _screen(message, number=self._number, asked=self._cohort, missing=self._open)
            if message.has_error():
                self._fail(client, printable(message.error.reason), message.error)
            else:
                self._count(message)
        except ReplyError as error:
            self._emit("update_refused", _details(self._number, error))
            if client in self._open:
                refused = self._open.intersection(clients_of(message) if self._combined else ())
                for each in refused | {client}:
                    self.failures[each] = f"{error.field} {error.reason}"
                self._close(refused | {client})

    def finish(self) -> Aggregate:
        """Return the aggregate of the valid updates; clients that have not answered have failed.

        Raises:
            QuorumError: there are fewer than the quorum.
        """
        for client in sorted(self._open):
            self._fail(client, f"no answer within {self._plan.deadline_s:g} s")
        valid, needed = len(self._contributors), self._quorum
        if valid < needed:
            raise QuorumError(
                f"round {self._number}: quorum not met: {valid} of {needed} updates"
                + named(self.failures, self._name_of)
            )
        return self._fold.finish()

    def metrics(self) -> Metrics:
        """Return the means of what the valid replies report."""
        return self._means.means()

    def _count(self, message: Message) -> None:
        client = sender_of(message)
        reply = read_reply(message, forms=self._forms, combined=self._combined)
        if not self._open.issuperset(reply.clients):
            raise ReplyError(client, "reply", "stands for clients not asked, or counted already")
        if self._fault is not None and (fault := self._fault(reply.tensors)):
            raise ReplyError(client, "update", fault)
        tensors = within_norm(
            client, reply.tensors, self._params, self._plan, number=self._number, emit=self._emit
        )
        metrics = records_in(message.content, MetricRecord)[0]
        update = update_of(reply, metrics, tensors, client=client)
        if self._reports:
            self._means.add(reply.metrics, weight=reply.weight)
            add_rows(self.table, reply)
        self._contributors.update(reply.clients)
        self._close(reply.clients, update)

    def _fail(self, client: int, reason: str, error: Error | None = None) -> None:
        self.failures[client] = reason
        self._close([client])
        self._emit("client_failed", failure_detail(self._number, client, reason, error=error))

    def _close(self, clients: Iterable[int], update: Update | None = None) -> None:
        self._open.difference_update(clients)
        if update is None:
            self._fold.settle(*clients)
        else:
            self._fold.add(update, stands_for=clients)


def within_norm(
    client: int,
    tensors: Mapping[str, FlatTensor],
    sent: Params,
    plan: RoundPlan,
    *,
    number: int,
    emit: Emit,
) -> Mapping[str, FlatTensor]:
    """Clip an update whose delta is larger than the limit.

    Raises:
        ReplyError: the plan rejects such updates.
    """
    limit = plan.update_norm_max
    if limit is None:
        return tensors
    norm = delta_norm_l2(sent, tensors)
    if norm <= limit:
        return tensors
    if plan.update_norm_policy == "reject":
        raise ReplyError(client, "update", f"norm must be <= {limit:g}, is {norm:g}")
    detail = {"round": number, "client": client, "norm": norm, "norm_max": limit}
    emit("update_clipped", detail)
    return clip_delta(sent, tensors, factor=limit / norm)


def add_rows(table: ClientTable, reply: Reply) -> None:
    """Add the table of the single clients that a combined reply stands for."""
    columns = dict(reply.columns)
    examples = columns.pop(EXAMPLES_KEY, [None] * len(reply.clients))
    table.add(reply.clients, examples, columns)


def collect_evaluation(
    replies: Iterable[Message],
    *,
    number: int,
    clients: Collection[int],
    combined: bool,
    emit: Emit,
    table: ClientTable,
    failed: set[int],
) -> Metrics:
    """Average what clients measured, by their number of examples; empty if nobody did.

    `table` takes what each of them measured, and `failed` those of whom nothing counts.

    A site without test data answers `NOTHING_TO_EVALUATE`; it is skipped without an event.
    """
    missing, means = set(clients), MetricMeans()
    for message in replies:
        client = message.metadata.src_node_id
        try:
            _screen(message, number=number, asked=clients, missing=missing)
            missing.discard(client)
            if message.has_error() and message.error.code == NOTHING_TO_EVALUATE:
                continue
            if message.has_error():
                failed.add(client)
                reason, during = printable(message.error.reason), MessageType.EVALUATE
                detail = failure_detail(number, client, reason, during=during, error=message.error)
                emit("client_failed", detail)
                continue
            reply = read_reply(message, forms=None, combined=combined)
            if not missing.issuperset(set(reply.clients) - {client}):
                raise ReplyError(
                    client, "reply", "stands for clients not asked, or counted already"
                )
            missing.difference_update(reply.clients)
            add_rows(table, reply)
        except ReplyError as error:
            emit("evaluation_refused", _details(number, error))
            failed.update({client}.intersection(clients) - {*table.clients})
            continue
        means.add(reply.metrics, weight=reply.weight)
    for client in sorted(missing - failed):
        failed.add(client)
        emit("client_failed", failure_detail(number, client, "no answer", during="evaluate"))
    return means.means()


def _screen(
    message: Message, *, number: int, asked: Collection[int], missing: Collection[int]
) -> None:
    """Refuse a reply that nobody asked for, or that has come before."""
    client = sender_of(message)
    if client not in asked:
        raise ReplyError(client, "reply", "comes from a client that was not asked")
    if message.metadata.group_id not in ("", str(number)):
        group = printable(message.metadata.group_id)
        raise ReplyError(client, "reply", f"belongs to round {group!r}, not {number}")
    if client not in missing:
        raise ReplyError(client, "reply", "has come before: it counts once")
    if not message.has_error() and not message.has_content():
        raise ReplyError(client, "reply", "is empty")


def _details(number: int, error: ReplyError) -> dict[str, Any]:
    return {
        "round": number,
        "client": error.client,
        "field": error.field,
        "reason": error.reason,
    }
