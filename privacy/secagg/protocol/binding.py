"""Binds a session to its roster, round, model, configuration and plan by one hash, the *context*.

Every key derivation and every signature includes the context. So clients to which a server sent
different models (Pasquini, Francati, Ateniese, "Eluding secure aggregation in federated learning
via model inconsistency", 2022), rosters or parameters cannot complete a session together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from ....errors import ConfigError, SecureAggregationError
from .client_keys import ADVERTISEMENT_BYTES, Advertisement
from .keys import KEY_BYTES
from .plan import Plan

__all__ = ["SESSION_BYTES", "Binding", "Roster", "context_of"]

SESSION_BYTES = (16, 64)
"""The minimum and maximum length of a session's id, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What a session is bound to, as its caller states it on either side.

    Attributes:
        session: an id that is never used twice, 16 to 64 bytes.
        round: the round's number.
        model: hash of the global model that the vectors were computed from, 32 bytes.
        configuration: hash of everything else that the clients must agree on, 32 bytes.
        beacon: 32 public bytes that determine the ring. They must be unknown when the roster is
            made, and the server must not choose them: a hash of the roster, or the value of a
            public randomness beacon. A client checks them before it passes them here. The
            complete graph does not use them.
    """

    session: bytes
    round: int
    model: bytes
    configuration: bytes
    beacon: bytes = bytes(32)

    def __post_init__(self) -> None:
        least, most = SESSION_BYTES
        if not least <= len(self.session) <= most:
            raise ConfigError(f"session must have {least} to {most} bytes, got {len(self.session)}")
        if not 0 <= self.round < 1 << 63:
            raise ConfigError(f"round must be in [0, 2^63), got {self.round}")
        for name in ("model", "configuration", "beacon"):
            if len(getattr(self, name)) != 32:
                raise ConfigError(f"{name} must have 32 bytes, got {len(getattr(self, name))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The cohort: each client's id, long-term Ed25519 public key and keys of this session.

    A client takes the long-term keys in its roster from its enrolment or from somebody it
    trusts: who chooses the roster chooses the clients of the sum.

    Attributes:
        names: the ids, sorted.
        keys: the long-term keys, 32 bytes each.
        advertised: what `ClientKeys.advertise` of each client returned.
        advertisements: the same, parsed; the signatures have not been checked.
    """

    names: tuple[str, ...]
    keys: tuple[bytes, ...]
    advertised: tuple[bytes, ...]
    advertisements: tuple[Advertisement, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        counts = {len(self.names), len(self.keys), len(self.advertised)}
        if list(self.names) != sorted(set(self.names)) or len(counts) != 1:
            raise ConfigError("a roster's names must be sorted, different, and have one key each")
        if any(len(key) != KEY_BYTES for key in self.keys):
            raise ConfigError(f"a roster's keys must have {KEY_BYTES} bytes")
        if any(len(record) != ADVERTISEMENT_BYTES for record in self.advertised):
            raise ConfigError(f"a roster's advertisements must have {ADVERTISEMENT_BYTES} bytes")
        found = tuple(Advertisement.from_bytes(record) for record in self.advertised)
        object.__setattr__(self, "advertisements", found)
        fresh = [key for record in found for key in (record.sealing, record.masking)]
        for kind, keys in (("key", self.keys), ("public key of the session", fresh)):
            if len(set(keys)) != len(keys):
                raise ConfigError(f"a {kind} is in the roster twice")

    @classmethod
    def of(cls, clients: Mapping[str, tuple[bytes, bytes]]) -> Roster:
        """Return the roster of these clients: name -> (long-term key, advertisement)."""
        names = sorted(clients)
        return cls(
            names=tuple(names),
            keys=tuple(clients[name][0] for name in names),
            advertised=tuple(clients[name][1] for name in names),
        )

    def index(self, name: str) -> int:
        """Return a client's index.

        Raises:
            SecureAggregationError: it is not in the roster.
        """
        try:
            return self.names.index(name)
        except ValueError:
            raise SecureAggregationError(f"client {name!r} is not in the roster") from None


def context_of(plan: Plan, roster: Roster, binding: Binding) -> bytes:
    """Return the 32-byte hash of everything that the parties of a session must agree on.

    Raises:
        ConfigError: the roster has another number of clients than the plan.
    """
    if len(roster.names) != plan.topology.clients:
        raise ConfigError(
            f"the plan is for {plan.topology.clients} clients, the roster has {len(roster.names)}"
        )
    fields = [
        b"meadow secagg context 2",
        plan.to_bytes(),
        binding.session,
        binding.round.to_bytes(8, "big"),
        binding.model,
        binding.configuration,
        binding.beacon,
        *(name.encode() for name in roster.names),
        *roster.keys,
        *roster.advertised,
    ]
    digest = sha256()
    for part in fields:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
