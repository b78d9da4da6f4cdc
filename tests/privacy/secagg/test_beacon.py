"""Large cohorts: the ring follows from what every client has drawn, and from nothing before."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from meadow.privacy.secagg.client import introduction as secure_introduction
from meadow.privacy.secagg.client.identity import pinned_identity
from meadow.privacy.secagg.protocol.topology import PRIVACY_BITS, choose_topology, ring_degree
from meadow.privacy.secagg.terms.announcement import Announcement, bind
from meadow.privacy.secagg.terms.terms import GRINDING_BITS, IDENTITY, SecureTerms

from .arena import STEPS, Arena, combined, model, reasons, require_mean

LARGE = SecureTerms(
    value_bound=2.0, metrics=("accuracy", "loss"), corrupt=0.05, dropout=0.05, value_bits=14
)


def announced(arena: Arena) -> list[Announcement]:
    """Return what clients were told of their sessions."""
    return [
        Announcement.read(message.content["secure"])
        for message in arena.wire.asked
        if message.metadata.message_type == STEPS[0]
    ]


def test_a_round_over_a_ring() -> None:
    """101 clients with 16 neighbours each; five are lost, and the mean is the others'."""
    arena = Arena(101)
    arena.grid = arena.secured(LARGE)
    arena.wire.on_way_back = lambda message: (
        None
        if message.metadata.src_node_id % 20 == 7 and message.metadata.message_type == STEPS[1]
        else message
    )
    reply = combined(arena.round())
    topology = LARGE.plan(clients=101, length=1).topology
    assert topology.ring and topology.neighbours == 16
    in_it = [node for node in range(1, 102) if node % 20 != 7]
    require_mean(reply, in_it, 1, model())


@pytest.mark.parametrize(
    ("fraction", "clients", "ring"),
    [
        (0.05, 100, False),
        (0.05, 101, True),
        (0.2, 400, False),
        (0.2, 600, True),
        (0.33, 500, False),
    ],
)
def test_the_size_from_which_there_is_a_ring(fraction: float, clients: int, ring: bool) -> None:
    """Above 100 clients, and where it at least halves the neighbours."""
    terms = SecureTerms(corrupt=fraction, dropout=min(0.3, fraction))
    topology = terms.plan(clients=clients, length=1).topology
    assert topology.ring is ring
    assert topology.neighbours <= (clients - 1) / 2 if ring else topology.neighbours == clients - 1


def test_trying_many_rings_is_paid_for() -> None:
    """The degree is that of a failure rate 2^64 times smaller: 2^64 tries gain nothing."""
    plan = SecureTerms(corrupt=0.05, dropout=0.05).plan(clients=1000, length=1)
    fair = choose_topology(clients=1000, corrupt=0.05, dropout=0.05)
    assert plan.topology.neighbours > fair.neighbours
    alone = ring_degree(1000, 50, 50, grinding_bits=GRINDING_BITS)
    assert alone is not None and alone.neighbours == plan.topology.neighbours == 74
    assert PRIVACY_BITS + GRINDING_BITS == 104


def test_everybodys_fresh_keys_decide_the_ring() -> None:
    """And so do the session and the members; the model does not."""
    arena = Arena(4)
    arena.round()
    told, content = announced(arena)[0], arena.instructions()[0].content

    def beacon(announcement: Announcement, run_id: int = 1, **other: Any) -> bytes:
        said = arena.instructions(**other)[0].content if other else content
        return bind(announcement, run_id=run_id, category="train", group="1", content=said).beacon

    base = beacon(told)
    assert beacon(told, params={"w": model()["weight"]}) == base
    others = [beacon(replace(told, session=b"t" * 32)), beacon(told, run_id=2)]
    for node in told.keys:
        others.append(beacon(replace(told, advertised={**told.advertised, node: bytes(160)})))
        others.append(beacon(replace(told, keys={**told.keys, node: bytes(32)})))
    assert len({base, *others}) == len(others) + 1


def test_a_server_that_invents_fresh_keys() -> None:
    """A client takes part only with its own; what it says to others is bound to all of them."""
    arena = Arena(5)

    def change(message: Message) -> Message:
        if (message.metadata.dst_node_id, message.metadata.message_type) == (2, STEPS[0]):
            told = Announcement.read(message.content["secure"])
            advertised = {**told.advertised, 2: bytes(range(160))}
            message.content["secure"] = replace(told, advertised=advertised).record()
        return message

    arena.wire.on_way_out = change
    replies = arena.round()
    assert "does not have the keys that this client drew last" in reasons(replies)[2]
    require_mean(combined(replies), [1, 3, 4, 5], 1, model())


def test_an_introduction_is_not_good_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory of an older day, put back in place, has no keys that can be used again."""
    arena, real = Arena(4), time.time

    def change(message: Message) -> Message:
        ahead_s = 0 if message.metadata.message_type == IDENTITY else 3700
        monkeypatch.setattr(secure_introduction.time, "time", lambda: real() + ahead_s)
        return message

    arena.wire.on_way_out = change
    assert "not of the last 3600 s" in reasons(arena.round())[1]


def test_an_introduction_is_good_once() -> None:
    """An announcement that is made of an earlier answer is refused, before anything is trained."""
    arena = Arena(4, identify=pinned_identity())
    old: dict[int, Any] = {}

    def replay(message: Message) -> Message:
        node = message.metadata.src_node_id
        if message.metadata.message_type == IDENTITY and node == 3:
            kept = old.setdefault(node, message.content["introduction"])
            message.content["introduction"] = ConfigRecord(dict(kept))
        return message

    arena.wire.on_way_back = replay
    combined(arena.round(1))
    params = {name: values * 2 for name, values in model().items() if values.ndim}
    replies = arena.round(2, params=params)
    assert "a session must begin only once" in reasons(replies)[3]
    require_mean(combined(replies), [1, 2, 4], 2, params)
