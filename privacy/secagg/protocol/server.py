"""The server's part in one secure sum: it relays messages, sums masked vectors, unmasks the sum.

In each round, `collect` takes each client's message; `close_round` then returns the next message
for each client. After four rounds of messages `sum` returns the result. A client's message is
accepted or refused with an error that names the client; a refused client may send again until
the round is closed. A client that sent no valid message by then has dropped out. `close_round` and
`sum` raise if too few clients are left: the session is over then, and nothing was unmasked.

The caller verifies the signatures of the roster's keys (`Advertisement.require_signed`), and can
leave out a client whose signature is not valid; the clients verify them too.

The server stores one vector for any number of clients. Its state cannot be saved: a server that
was restarted abandons the session and begins a new one, with a new session id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....errors import SecureAggregationError
from .binding import Binding, Roster, context_of
from .checks import require_quorum
from .graph import Graph, Members
from .keys import SIGNATURE_BYTES, verify
from .masks import add_masks
from .messages import SEALED_BYTES, Kind, Reader, members_bytes, write
from .packing import unpack
from .plan import Plan
from .recovery import Recovery
from .shamir import SHARE_BYTES
from .steps import ProtocolStep, Purpose

__all__ = ["SecureSum", "ServerSession"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureSum:
    """The result of a session, which reveals nothing else.

    Attributes:
        vector: the sum of weight * clipped vector over the clients in it.
        weight: the sum of their weights.
        clients: the names of the clients in the sum.
        suspects: the names of clients that sent a wrong share, which was not used.
    """

    vector: NDArray[np.float64]
    weight: int
    clients: tuple[str, ...]
    suspects: tuple[str, ...] = ()


UNMASKING_THREADS = 16
"""The most threads that add masks."""


class ServerSession:
    """The server in one session."""

    def __init__(self, *, plan: Plan, roster: Roster, binding: Binding) -> None:
        self._plan, self._roster = plan, roster
        self._context = context_of(plan, roster, binding)
        self._graph = Graph(plan.topology, binding.beacon)
        self._step: ProtocolStep | None = ProtocolStep.SHARE
        self._answered = self._nobody()
        self._sets: list[Members] = []
        """One set per closed round: who shared, who sent a masked vector, who confirmed."""
        self._sealed: dict[int, dict[int, bytes]] = {}
        """The sealed shares, by receiver and sender."""
        self._signatures: dict[int, bytes] = {}
        """Of the current round."""
        self._total = np.zeros(plan.encoding.numbers, np.uint32)
        self._shares: dict[int, dict[int, bytes]] = {}
        """The revealed shares, by the owner of the secret and the holder of the share."""

    @property
    def missing(self) -> list[str]:
        """The clients whose message of this round has not arrived."""
        waiting = self._expected() & ~self._answered
        return [self._roster.names[client] for client in np.flatnonzero(waiting).tolist()]

    def collect(self, client: str, message: bytes) -> None:
        """Take a client's message of the current round; the caller has authenticated the sender.

        Raises:
            SecureAggregationError: the message is refused; the session is unchanged.
        """
        step, sender = self._running(), self._roster.index(client)
        if not self._expected()[sender]:
            raise SecureAggregationError(f"client {client!r} dropped out earlier", suspect=client)
        if self._answered[sender]:
            raise SecureAggregationError(
                f"client {client!r} has already sent its message", suspect=client
            )
        take: Callable[[int, Reader], None] = (
            self._take_shares,
            self._take_masked,
            self._take_confirmation,
            self._take_unmasking,
        )[step]
        take(sender, Reader(Kind(2 * step + 1), self._context, message, sender=client))
        self._answered[sender] = True

    def close_round(self) -> dict[str, bytes]:
        """End a round and return the next message for each remaining client.

        Raises:
            SecureAggregationError: too few clients remain; the session is over.
        """
        step = self._running()
        if step is ProtocolStep.UNMASK:
            raise SecureAggregationError("the last round is closed: call sum(), not close_round()")
        self._step = None  # the session is over, unless the rest succeeds
        present, self._answered = self._answered, self._nobody()
        what, deliver = (
            ("shared their secrets", self._deliver_shares),
            ("sent a masked vector", self._deliver_survivors),
            ("confirmed the survivors", self._deliver_confirmations),
        )[step]
        if step is ProtocolStep.CONFIRM:
            require_quorum(present, self._plan.topology)
        else:
            self._graph.require_enough(present, what)
        self._sets.append(present)
        messages = deliver(present)
        self._signatures, self._step = {}, ProtocolStep(step + 1)
        return messages

    def sum(self) -> SecureSum:
        """Unmask the sum, and end the session.

        Raises:
            SecureAggregationError: too few shares arrived; nothing was unmasked.
        """
        if self._running() is not ProtocolStep.UNMASK:
            raise SecureAggregationError("the sum is available only after the last round")
        self._step = None
        shared, survivors, _ = self._sets
        recovery = Recovery(
            graph=self._graph,
            context=self._context,
            roster=self._roster,
            keys=self._roster.advertisements,
            shared=shared,
            survivors=survivors,
        )
        clients = np.flatnonzero(shared).tolist()
        masks = recovery.masks({client: self._shares.get(client, {}) for client in clients})
        add_masks(self._total, masks, threads=UNMASKING_THREADS)
        vector, weight = self._plan.encoding.decode(self._total)
        names = tuple(self._roster.names[client] for client in np.flatnonzero(survivors).tolist())
        return SecureSum(
            vector=vector, weight=weight, clients=names, suspects=tuple(recovery.suspects)
        )

    def _take_shares(self, sender: int, reader: Reader) -> None:
        receivers = self._neighbours(sender)
        records = reader.records(len(receivers), SEALED_BYTES)
        reader.end()
        for receiver, sealed in zip(receivers, records, strict=True):
            self._sealed.setdefault(receiver, {})[sender] = sealed

    def _take_masked(self, sender: int, reader: Reader) -> None:
        (signature,) = reader.records(1, SIGNATURE_BYTES)
        encoding = self._plan.encoding
        packed = reader.body(encoding.wire_bytes)
        reader.end()
        self._verify(sender, signature, Purpose.MASKED, *map(members_bytes, self._sets))
        self._total += unpack(packed, encoding.numbers, encoding.bits)
        self._signatures[sender] = signature

    def _take_confirmation(self, sender: int, reader: Reader) -> None:
        (signature,) = reader.records(1, SIGNATURE_BYTES)
        reader.end()
        self._verify(sender, signature, Purpose.SURVIVORS, *map(members_bytes, self._sets))
        self._signatures[sender] = signature

    def _take_unmasking(self, sender: int, reader: Reader) -> None:
        owners = [owner for owner in self._graph.holders(sender) if self._sets[0][owner]]
        shares = reader.records(len(owners), SHARE_BYTES)
        reader.end()
        for owner, share in zip(owners, shares, strict=True):
            self._shares.setdefault(owner, {})[sender] = share

    def _deliver_shares(self, present: Members) -> dict[str, bytes]:
        return self._deliver(
            Kind.DELIVERY, present, lambda receiver: self._sealed.pop(receiver, {})
        )

    def _deliver_survivors(self, present: Members) -> dict[str, bytes]:
        return self._deliver(Kind.SURVIVORS, present, lambda _: self._signatures)

    def _deliver_confirmations(self, present: Members) -> dict[str, bytes]:
        """Send a quorum of signatures, the same to every client."""
        chosen = np.flatnonzero(present)[: self._plan.topology.quorum]
        signers = self._nobody()
        signers[chosen] = True
        signatures = [self._signatures[client] for client in chosen.tolist()]
        message = write(Kind.CONFIRMATIONS, self._context, members_bytes(signers), *signatures)
        return {self._roster.names[client]: message for client in np.flatnonzero(present).tolist()}

    def _deliver(
        self, kind: Kind, present: Members, records_for: Callable[[int], dict[int, bytes]]
    ) -> dict[str, bytes]:
        """Return for each client the set of present clients, and its neighbours' records."""
        messages = {}
        for receiver in np.flatnonzero(present).tolist():
            records = records_for(receiver)
            parts = [records[other] for other in self._neighbours(receiver) if present[other]]
            messages[self._roster.names[receiver]] = write(
                kind, self._context, members_bytes(present), *parts
            )
        return messages

    def _expected(self) -> Members:
        """Return the clients that may send a message in this round."""
        return self._sets[-1] if self._sets else ~self._nobody()

    def _neighbours(self, client: int) -> list[int]:
        return self._graph.neighbours(client)

    def _nobody(self) -> Members:
        return np.zeros(len(self._roster.names), np.bool_)

    def _running(self) -> ProtocolStep:
        if self._step is None:
            raise SecureAggregationError("this session is over; begin a new one")
        return self._step

    def _verify(self, client: int, signature: bytes, purpose: bytes, *parts: bytes) -> None:
        key, name = self._roster.keys[client], self._roster.names[client]
        verify(key, signature, self._context, purpose, *parts, name=name)
