"""`SecureAggregationGrid`: wraps any Flower grid so that clients' updates are seen only as a sum.

    strategy.start(SecureAggregationGrid(grid, SecureTerms(value_bound=0.5)), arrays)

Every train and evaluate instruction becomes a secure sum over the clients of its cohort, which
must run `meadow.privacy.secagg.client.app.secure_app`. The strategy gets one reply that stands for
all of them (`strategies.combined`), and error replies of clients that are not in the sum, so every
linear strategy works.

With `SecureTerms(group_size=g)` the cohort is divided at random, and the strategy gets one reply
for each group of at least g clients; rules such as a median use those in place of single updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from ....errors import RunError
from ....flower.run_grid import WrappedGrid
from ....strategies.rounds.broadcast import Broadcast
from ..terms.member import Member
from ..terms.terms import SecureTerms
from .exchange import SecureExchange

__all__ = ["SecureAggregationGrid"]

Emit = Callable[[str, Mapping[str, Any]], None]
SUMMED = ("train", "evaluate")


class SecureAggregationGrid(WrappedGrid):
    """A Grid that wraps another one and never receives single updates.

    Guarantees: train and evaluate instructions are sent only as part of a secure sum.
    Raises, when messages are sent:
        RunError: the instructions of one round differ, or are of a type that cannot be summed.
    """

    combines_updates = True

    def __init__(
        self,
        grid: Grid,
        terms: SecureTerms,
        *,
        emit: Emit = lambda kind, detail: None,
        seed: int = 0,
    ) -> None:
        """`emit` gets "secure_sum" after every round, and "secure_suspects" if clients lied.

        `seed` determines the groups, if there are any.
        """
        super().__init__(grid)
        self._terms, self._emit, self._seed = terms, emit, seed
        self._introduced: tuple[str, dict[int, Member]] = ("", {})
        """The introductions for the evaluation that clients sent with a group's training."""

    @property
    def combines_in_groups(self) -> bool:
        """Whether there are several replies, one per group."""
        return self._terms.group_size is not None

    # ------------------------------------------------------------------ Flower's interface

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages other than instructions to train or evaluate."""
        batch = list(messages)
        for message in batch:
            if _category(message.metadata.message_type) in SUMMED:
                raise RunError(
                    f"a {message.metadata.message_type!r} message would return single updates; "
                    "pass it to send_and_receive with those of the whole cohort"
                )
        return self._grid.push_messages(batch)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return one reply for all clients in the sum, and error replies of the others.

        Units: `timeout` applies to each exchange, in seconds.
        """
        batch = messages if isinstance(messages, Broadcast) else list(messages)
        kinds = {message.metadata.message_type for message in _samples(batch)}
        if not any(_category(kind) in SUMMED for kind in kinds):
            return self._grid.send_and_receive(batch, timeout=timeout)
        if len(kinds) > 1 or not kinds < {*SUMMED, ""}:
            raise RunError(f"messages of the types {sorted(kinds)} cannot be summed together")
        _require_alike(batch)
        group = batch[0].metadata.group_id
        of_group, introduced = self._introduced
        exchange = SecureExchange(
            self._grid,
            batch,
            terms=self._terms,
            timeout=timeout,
            seed=self._seed,
            # Only within a message group: other answers are not repeated after a restart.
            introduced=introduced if of_group == group else {},
        )
        self._introduced = ("", {})
        replies = exchange.run()
        self._introduced = (group, exchange.introduced)
        self._report(batch, exchange)
        return iter(replies)

    def _report(self, batch: Sequence[Message], exchange: SecureExchange) -> None:
        head = batch[0].metadata
        detail = {"round": head.group_id, "of": head.message_type, "clients": len(batch)}
        self._emit("secure_sum", {**detail, "failures": len(exchange.failures)})
        if exchange.suspects:
            self._emit("secure_suspects", {**detail, "suspects": list(exchange.suspects)})


def _category(message_type: str) -> str:
    return message_type.partition(".")[0]


def _samples(batch: Sequence[Message]) -> Sequence[Message]:
    """Return messages that represent a batch."""
    return batch[:1] if isinstance(batch, Broadcast) else batch


def _require_alike(batch: Sequence[Message]) -> None:
    """Check that all clients get the same instruction, and each client only one."""
    if isinstance(batch, Broadcast):
        return
    first = batch[0]
    for message in batch:
        same = message.content is first.content or message.content == first.content
        if not same or message.metadata.group_id != first.metadata.group_id:
            raise RunError("clients of one secure sum must get the same instruction")
    nodes = {message.metadata.dst_node_id for message in batch}
    if len(nodes) != len(batch):
        raise RunError("a client must get only one instruction of one secure sum")
