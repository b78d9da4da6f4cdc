"""A client's part in one secure sum: four messages out, three in, no network and no clock.

    share()                 shares of its secrets, sealed for their holders
    mask(delivery, ...)     its vector under masks
    confirm(survivors)      its signature of who is in the sum
    unmask(confirmations)   one share of one secret of each client: never both

The first error ends the session: its secrets are deleted, and every later call raises. A session
cannot be saved and restored; a client or server that was restarted takes part in a new one. A
vector that was masked once must not be masked in another session, even if this one fails: the
difference of two sums may be one client's vector.

Source: Bonawitz et al. (2017), figure 4 with the parts for a malicious server, with three
differences. The keys are advertised before the session (`ClientKeys`), and the context includes
all of them. The signature of the survivors covers the sets of all rounds and the context. And a
client gives a share of a survivor's self-mask only after it has seen that survivor's signature of
the set that it was masked against, so all clients in the sum were masked against the same set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from ....errors import ConfigError, SecureAggregationError
from ....randomness.entropy import Entropy
from .binding import Binding, Roster, context_of
from .checks import require_quorum, require_within
from .client_keys import Advertisement, ClientKeys
from .client_secrets import ClientSecrets
from .graph import Graph, Members
from .keys import SIGNATURE_BYTES, sign, verify
from .masks import add_masks
from .messages import SEALED_BYTES, SERVER, Kind, Reader, members_bytes, write
from .packing import pack
from .plan import Minimum, Plan
from .steps import ProtocolStep, Purpose

__all__ = ["ClientSession"]


class ClientSession:
    """One client in one session.

    Raises:
        ConfigError: the plan protects less than `minimum`, or does not fit the roster or key.
        SecureAggregationError: the roster has other session keys for this client than its own.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        me: str,
        signing_key: Ed25519PrivateKey,
        keys: ClientKeys,
        roster: Roster,
        binding: Binding,
        entropy: Entropy,
        minimum: Minimum | None = None,
    ) -> None:
        (minimum or Minimum()).require(plan.topology)
        self._plan, self._roster, self._key, self._entropy = plan, roster, signing_key, entropy
        self._context = context_of(plan, roster, binding)
        self._me = roster.index(me)
        if signing_key.public_key().public_bytes_raw() != roster.keys[self._me]:
            raise ConfigError(f"the roster has another key for client {me!r} than its signing key")
        if not roster.advertised[self._me].startswith(keys.public(roster.keys[self._me])):
            raise SecureAggregationError(
                "the roster has other keys of the session for this client than its own"
            )
        self._graph = Graph(plan.topology, binding.beacon)
        self._neighbours = self._graph.neighbours(self._me)
        self._secrets: ClientSecrets | None = ClientSecrets(
            keys.spend(),
            me=self._me,
            names=roster.names,
            context=self._context,
            entropy=entropy,
        )
        self._next = ProtocolStep.SHARE
        self._sets: list[Members] = []
        """The clients that shared, and those in the sum, as the server announced them."""

    def share(self) -> bytes:
        """Check the neighbours' keys and return this client's shares, each sealed for its holder.

        Raises:
            SecureAggregationError: a key has no valid signature of its owner, or is of low order.
        """
        with self._step(ProtocolStep.SHARE) as secrets:
            neighbours = self._keys_of(self._neighbours)
            for client, keys in neighbours.items():
                keys.require_signed(self._roster.keys[client], name=self._roster.names[client])
            secrets.agree(neighbours)
            holders = self._graph.holders(self._me)
            sealed = secrets.sealed_shares(holders, threshold=self._plan.topology.threshold)
            return self._write(Kind.SHARES, *sealed)

    def mask(self, delivery: bytes, vector: NDArray[Any], weight: int = 1) -> bytes:
        """Take the others' shares, and return a vector and its weight under masks.

        Shapes: vector (length,), of any floating-point dtype.

        Raises:
            SecureAggregationError: there are too few clients, or a share was changed in transit.
            UpdateError: the vector or the weight does not fit the plan, or is not finite.
        """
        with self._step(ProtocolStep.MASK) as secrets:
            reader = self._read(Kind.DELIVERY, delivery)
            present = self._take_set(reader, "shared their secrets")
            senders = self._neighbours_in(present)
            records = reader.records(len(senders), SEALED_BYTES)
            reader.end()
            for sender, sealed in zip(senders, records, strict=True):
                secrets.take_shares(sender, sealed)
            numbers = self._plan.encoding.encode(vector, weight, entropy=self._entropy)
            add_masks(numbers, secrets.masks(self._keys_of(senders)))
            signature = self._sign(Purpose.MASKED, *self._sets_bytes())
            return self._write(Kind.MASKED, signature, pack(numbers, self._plan.encoding.bits))

    def confirm(self, survivors: bytes) -> bytes:
        """Check who is in the sum, and return this client's signature of it.

        Raises:
            SecureAggregationError: there are too few clients, this one is not among them, or a
                neighbour was masked against another set.
        """
        with self._step(ProtocolStep.CONFIRM):
            reader = self._read(Kind.SURVIVORS, survivors)
            masked_against = self._sets_bytes()
            present = self._take_set(reader, "sent a masked vector")
            senders = self._neighbours_in(present)
            self._take_signatures(reader, senders, Purpose.MASKED, masked_against)
            reader.end()
            return self._write(
                Kind.CONFIRMATION, self._sign(Purpose.SURVIVORS, *self._sets_bytes())
            )

    def unmask(self, confirmations: bytes) -> bytes:
        """Check that enough clients confirmed the same survivors, and return what unmasks them.

        For each client whose shares this one holds: the share of its self-mask's seed if it is
        in the sum, else that of its masking key.

        Raises:
            SecureAggregationError: there are too few valid signatures of the same sets.
        """
        with self._step(ProtocolStep.UNMASK) as secrets:
            shared, survivors = self._sets
            reader = self._read(Kind.CONFIRMATIONS, confirmations)
            signers = reader.members(len(self._roster.names))
            require_within(signers, survivors, self._roster, "confirmed the survivors")
            require_quorum(signers, self._plan.topology)
            chosen = np.flatnonzero(signers).tolist()
            self._take_signatures(reader, chosen, Purpose.SURVIVORS, self._sets_bytes())
            reader.end()
            owners = [owner for owner in self._graph.holders(self._me) if shared[owner]]
            shares = [secrets.give_away(owner, survived=survivors[owner]) for owner in owners]
            return self._write(Kind.UNMASKING, *shares)

    @contextmanager
    def _step(self, step: ProtocolStep) -> Iterator[ClientSecrets]:
        """Do one step, once and in order; any error ends the session."""
        secrets, self._secrets = self._secrets, None
        if secrets is None or step is not self._next:
            state = "over" if secrets is None else f"at {self._next.name.lower()}"
            raise SecureAggregationError(
                f"the step {step.name.lower()} is requested, but this session is {state}; "
                "begin a new one"
            )
        yield secrets
        if step is not ProtocolStep.UNMASK:
            self._secrets, self._next = secrets, ProtocolStep(step + 1)

    def _take_set(self, reader: Reader, what: str) -> Members:
        """Read and check the set of clients that completed the round, as the server sent it."""
        present = reader.members(len(self._roster.names))
        if self._sets:
            require_within(present, self._sets[-1], self._roster, what)
        if not present[self._me]:
            raise SecureAggregationError(f"the server does not list this client as one that {what}")
        self._graph.require_enough(present, what)
        self._sets.append(present)
        return present

    def _take_signatures(
        self, reader: Reader, signers: Sequence[int], purpose: bytes, sets: Sequence[bytes]
    ) -> None:
        """Read and verify the clients' signatures over sets of clients."""
        records = reader.records(len(signers), SIGNATURE_BYTES)
        for signer, signature in zip(signers, records, strict=True):
            self._verify(signer, signature, purpose, *sets)

    def _neighbours_in(self, members: Members) -> list[int]:
        return [client for client in self._neighbours if members[client]]

    def _keys_of(self, clients: Sequence[int]) -> dict[int, Advertisement]:
        return {client: self._roster.advertisements[client] for client in clients}

    def _sets_bytes(self) -> list[bytes]:
        """Return the sets so far, encoded as they are signed."""
        return [members_bytes(members) for members in self._sets]

    def _sign(self, purpose: bytes, *parts: bytes) -> bytes:
        return sign(self._key, self._context, purpose, *parts)

    def _verify(self, client: int, signature: bytes, purpose: bytes, *parts: bytes) -> None:
        key, name = self._roster.keys[client], self._roster.names[client]
        verify(key, signature, self._context, purpose, *parts, name=name)

    def _read(self, kind: Kind, message: bytes) -> Reader:
        return Reader(kind, self._context, message, sender=SERVER)

    def _write(self, kind: Kind, *parts: bytes) -> bytes:
        return write(kind, self._context, *parts)
