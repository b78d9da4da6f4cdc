"""Whole secure sums in one process, each call of the server and the clients handed to a meter."""

from __future__ import annotations

import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meadow.privacy.secagg.protocol import (
    Binding,
    ClientKeys,
    ClientSession,
    Plan,
    Roster,
    ServerSession,
)
from meadow.randomness.entropy import system_entropy

__all__ = ["PHASES", "Cpu", "Memory", "run_session"]

PHASES = ("keys", "shares", "vectors", "confirm", "unmask")
Meter = Callable[..., Any]
"""Called with "client" or a phase of the server's, an action and its arguments; returns what the
action returns."""


def run_session(plan: Plan, gone: int, meter: Meter) -> float:
    """Run one session, check its sum, and return the mean bytes a client sent.

    The first `gone` clients vanish before they send a vector; the ring's order is another one.
    """
    keys = {f"site-{n:05}": Ed25519PrivateKey.generate() for n in range(plan.topology.clients)}
    members = {
        name: Member(name, key, meter if number >= gone else unmetered)
        for number, (name, key) in enumerate(keys.items())
    }
    roster = meter("keys", checked, {name: one.introduction() for name, one in members.items()})
    binding = Binding(
        session=b"benchmark" * 2,
        round=1,
        model=b"m" * 32,
        configuration=b"c" * 32,
        beacon=b"b" * 32,
    )
    vector = np.random.default_rng(0).standard_normal(plan.encoding.length, np.float32) / 8
    about: dict[str, Any] = {"plan": plan, "roster": roster, "binding": binding}
    server = meter("keys", lambda: ServerSession(**about))
    for member in members.values():
        member.begin(about, vector)
    heard, sent_bytes = dict.fromkeys(keys, b""), 160.0 * (len(keys) - gone)
    for step, phase in enumerate(PHASES[1:]):
        if phase == "vectors":
            meter(phase, forget, heard, list(heard)[:gone])
        for name, message in heard.items():
            answer = members[name].answer(step, message)
            meter(phase, server.collect, name, answer)
            sent_bytes += len(answer) * (members[name].meter is meter)
        message = answer = b""
        meter(phase, forget, heard, list(heard))  # they are sent: no longer the server's memory
        if phase != PHASES[-1]:
            heard = meter(phase, server.close_round)
    result = meter("unmask", server.sum)
    assert len(result.clients) == len(keys) - gone
    np.testing.assert_allclose(result.vector / result.weight, vector, atol=2 / 2**15)
    return sent_bytes / len(result.clients)


def forget(messages: dict[str, bytes], names: Iterable[str]) -> None:
    """Drop messages, where the meter sees it."""
    for name in names:
        del messages[name]


def checked(introductions: dict[str, tuple[bytes, bytes]]) -> Roster:
    """Return the roster of clients whose keys are signed."""
    roster = Roster.of(introductions)
    for name, key, said in zip(roster.names, roster.keys, roster.advertisements, strict=True):
        said.require_signed(key, name=name)
        said.require_agreeable(name=name)
    return roster


class Member:
    """A client of a session, its construction measured too."""

    def __init__(self, name: str, key: Ed25519PrivateKey, meter: Meter) -> None:
        self.meter, self._name, self._key = meter, name, key
        self._keys: ClientKeys = meter("client", ClientKeys, system_entropy)
        self._session: ClientSession
        self._vector: np.ndarray

    def introduction(self) -> tuple[bytes, bytes]:
        """Return its long-term key, and what it advertises."""
        advertised: bytes = self.meter(
            "client", lambda: self._keys.advertise(self._key, name=self._name)
        )
        return self._key.public_key().public_bytes_raw(), advertised

    def begin(self, about: dict[str, Any], vector: np.ndarray) -> None:
        """Take part in a session, with this vector."""
        own = {"me": self._name, "signing_key": self._key, "keys": self._keys}
        self._session = self.meter(
            "client", lambda: ClientSession(entropy=system_entropy, **own, **about)
        )
        self._vector = vector

    def answer(self, step: int, message: bytes) -> bytes:
        """Return its message of a step."""
        session = self._session
        actions: tuple[Callable[[], bytes], ...] = (
            session.share,
            lambda: session.mask(message, self._vector),
            lambda: session.confirm(message),
            lambda: session.unmask(message),
        )
        answer: bytes = self.meter("client", actions[step])
        return answer


class Cpu:
    """Adds up CPU seconds by who acts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def __call__(self, who: str, action: Callable[..., Any], *arguments: Any) -> Any:
        began_s = time.process_time()
        done = action(*arguments)
        self.seconds[who] += time.process_time() - began_s
        return done


class Memory:
    """Follows the memory that everybody but clients keeps, and its peak within their calls."""

    def __init__(self) -> None:
        self.peak_bytes = self._kept_bytes = 0

    def __call__(self, who: str, action: Callable[..., Any], *arguments: Any) -> Any:
        if who == "client":
            return action(*arguments)
        tracemalloc.reset_peak()
        before_bytes, _ = tracemalloc.get_traced_memory()
        done = action(*arguments)
        after_bytes, peak_bytes = tracemalloc.get_traced_memory()
        self.peak_bytes = max(self.peak_bytes, self._kept_bytes + peak_bytes - before_bytes)
        self._kept_bytes += after_bytes - before_bytes
        return done


def unmetered(who: str, action: Callable[..., Any], *arguments: Any) -> Any:
    """Do it, and measure nothing."""
    return action(*arguments)
