"""A cohort in memory: a server, its clients, and the vectors that they sum up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meadow.privacy.secagg.protocol import (
    Binding,
    ClientKeys,
    ClientSession,
    Roster,
    ServerSession,
    plan_secure_sum,
)
from meadow.privacy.secagg.protocol.binding import context_of
from meadow.privacy.secagg.protocol.graph import Graph
from meadow.privacy.secagg.protocol.steps import ProtocolStep

HEADER_BYTES = 21
CLIP = 2.0**15 - 1
"""With 16 bits a value, whole numbers up to this one are summed exactly."""


def replayed(seed: int) -> Callable[[int], bytes]:
    """Return entropy that a test can repeat."""
    return np.random.default_rng(seed).bytes


@lru_cache(maxsize=1000)
def signing_key(name: str) -> Ed25519PrivateKey:
    """Return a client's long-term key."""
    return Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b"-"))


class Cohort:
    """Clients and a server of one session; a test may put itself between them."""

    ProtocolStep = ProtocolStep

    def __init__(self, clients: int, *, seed: int = 0, **planned: Any) -> None:
        planned = {"length": 7, "value_bound": CLIP, "weight_max": 3, "value_bits": 16, **planned}
        self.plan = plan_secure_sum(clients=clients, **planned)
        self.names = [f"site-{number:03}" for number in range(clients)]
        self.seed = seed
        self.roster = self.roster_of(self.names)
        self.binding = self.bind()
        self.clients = {name: self.client(name) for name in self.names}
        self.server = ServerSession(plan=self.plan, roster=self.roster, binding=self.binding)
        random = np.random.default_rng(seed)
        length, bound = self.plan.encoding.length, int(self.plan.encoding.value_bound)
        self.vectors = {
            name: random.integers(-bound, bound, length, endpoint=True).astype(np.float32)
            for name in self.names
        }
        self.weights = {name: int(random.integers(1, 3, endpoint=True)) for name in self.names}

    def keys_of(self, name: str) -> ClientKeys:
        """Return a client's keys of the session."""
        return ClientKeys(replayed(500_000 + self.seed * 1000 + int(name[-3:])))

    def introduction(self, name: str, keys: ClientKeys | None = None) -> tuple[bytes, bytes]:
        """Return a client's long-term key, and what it advertises."""
        long_term = signing_key(name)
        advertised = (keys or self.keys_of(name)).advertise(long_term, name=name)
        return long_term.public_key().public_bytes_raw(), advertised

    def roster_of(self, names: Iterable[str], **other: tuple[bytes, bytes]) -> Roster:
        """Return a roster; `other` introductions replace those of clients, "_" for "-"."""
        told = {name: self.introduction(name) for name in names}
        return Roster.of(told | {name.replace("_", "-"): said for name, said in other.items()})

    @staticmethod
    def bind(**fields: Any) -> Binding:
        known = {"session": b"session-" * 2, "round": 3, "model": b"m" * 32}
        return Binding(**{**known, "configuration": b"c" * 32, "beacon": b"b" * 32, **fields})

    @property
    def context(self) -> bytes:
        return context_of(self.plan, self.roster, self.binding)

    @property
    def graph(self) -> Graph:
        return Graph(self.plan.topology, self.binding.beacon)

    def client(self, name: str, **other: Any) -> ClientSession:
        """Return a fresh session of one client; `other` arguments replace the cohort's."""
        arguments = {
            "plan": self.plan,
            "me": name,
            "signing_key": signing_key(name),
            "keys": self.keys_of(name),
            "roster": self.roster,
            "binding": self.binding,
            "entropy": replayed(self.seed * 1000 + int(name[-3:])),
        }
        return ClientSession(**{**arguments, **other})

    def say(self, step: ProtocolStep, name: str, heard: bytes) -> bytes:
        """Return what an honest client answers."""
        client = self.clients[name]
        if step is ProtocolStep.SHARE:
            return client.share()
        if step is ProtocolStep.MASK:
            return client.mask(heard, self.vectors[name], self.weights[name])
        return (client.confirm if step is ProtocolStep.CONFIRM else client.unmask)(heard)

    def until(
        self, step: ProtocolStep, dropouts: Mapping[str, ProtocolStep] | None = None
    ) -> dict[str, bytes]:
        """Run the steps before `step`, and return what each client hears next.

        A client in `dropouts` answers nothing from its step on.
        """
        heard = dict.fromkeys(self.names, b"")
        for now in list(ProtocolStep)[:step]:
            self.answer(now, heard, dropouts)
            heard = self.server.close_round()
        return heard

    def answer(
        self,
        now: ProtocolStep,
        heard: Mapping[str, bytes],
        dropouts: Mapping[str, ProtocolStep] | None = None,
    ) -> None:
        """Let the clients who are there answer what they heard."""
        for name, message in heard.items():
            if now < (dropouts or {}).get(name, len(ProtocolStep)):
                self.server.collect(name, self.say(now, name, message))

    def run(self, dropouts: Mapping[str, ProtocolStep] | None = None):
        """Run a session to its end, and return the sum."""
        self.answer(ProtocolStep.UNMASK, self.until(ProtocolStep.UNMASK, dropouts), dropouts)
        return self.server.sum()

    def plain_sum(self, names: Iterable[str]) -> tuple[np.ndarray, int]:
        """Return what the sum over some clients must be."""
        chosen = list(names)
        vector = sum(self.weights[name] * self.vectors[name].astype(np.float64) for name in chosen)
        return vector, sum(self.weights[name] for name in chosen)

    def require_exact(self, result: Any, names: Iterable[str]) -> None:
        """Check a result to the last bit."""
        vector, weight = self.plain_sum(names)
        np.testing.assert_array_equal(result.vector, vector)
        assert (result.weight, result.clients) == (weight, tuple(sorted(names)))


def edit(message: bytes, at: int, data: bytes) -> bytes:
    """Return a message with bytes of its body replaced, from `at` on."""
    start = HEADER_BYTES + at
    return message[:start] + data + message[start + len(data) :]


def flip(message: bytes, at: int, bit: int = 0) -> bytes:
    """Return a message with one bit of its body flipped."""
    return edit(message, at, bytes([message[HEADER_BYTES + at] ^ (1 << bit)]))


def with_set(message: bytes, clients: Iterable[int], size: int) -> bytes:
    """Return a message whose set is another one, its records as they are."""
    members = np.zeros(size, bool)
    members[list(clients)] = True
    return edit(message, 0, np.packbits(members, bitorder="little").tobytes())


class Kit:
    """What the tests of this folder share."""

    Cohort, replayed, signing_key = Cohort, staticmethod(replayed), staticmethod(signing_key)
    edit, flip, with_set = staticmethod(edit), staticmethod(flip), staticmethod(with_set)
    ProtocolStep, HEADER_BYTES = ProtocolStep, HEADER_BYTES


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    """The cohort, and tools to forge messages with."""
    return Kit
