"""The ring: regular, mutual, from the beacon alone; and sets that would cut it."""

from __future__ import annotations

import numpy as np
import pytest

from meadow.privacy.secagg.protocol import SecureAggregationError
from meadow.privacy.secagg.protocol.graph import Graph
from meadow.privacy.secagg.protocol.topology import choose_topology


def ring(clients: int = 200, beacon: bytes = b"b" * 32) -> Graph:
    return Graph(choose_topology(clients=clients, corrupt=0.1, dropout=0.1), beacon)


def test_neighbours_are_mutual_and_equally_many():
    """k each, none of them itself."""
    graph = ring()
    sets = {client: set(graph.neighbours(client)) for client in range(200)}
    assert {len(others) for others in sets.values()} == {graph.topology.neighbours}
    assert all(client in sets[other] for client, others in sets.items() for other in others)
    assert not any(client in others for client, others in sets.items())
    assert graph.holders(5) == graph.neighbours(5)


def test_the_beacon_decides_the_order():
    """The same beacon gives the same ring; another one a ring that has little to do with it."""
    assert ring().order == ring().order
    other = ring(beacon=b"c" * 32)
    assert sorted(other.order) == list(range(200))
    common = set(ring().neighbours(7)) & set(other.neighbours(7))
    assert len(common) < other.topology.neighbours * 2 // 3


def test_the_order_is_spread_evenly():
    """Over 400 beacons, client 0 stands in each quarter of the ring about as often."""
    small = choose_topology(clients=12, corrupt=0.0, dropout=0.0, complete_max=3)
    places = [Graph(small, bytes([n % 256, n // 256]) * 16).order.index(0) for n in range(400)]
    counts = np.bincount(np.array(places) // 3, minlength=4)
    assert ((counts - 100) ** 2 / 100).sum() < 21.1  # chi-square, 3 degrees, p = 1e-4


def test_everybody_is_a_neighbour_on_the_complete_graph():
    """And holds a share of its own."""
    graph = Graph(choose_topology(clients=5, corrupt=0.0, dropout=0.0), bytes(32))
    assert graph.neighbours(2) == [0, 1, 3, 4]
    assert graph.holders(2) == [0, 1, 2, 3, 4]


def test_dropouts_that_would_cut_the_ring_are_refused():
    """The server drops clients in a row, fewer than may drop out, to leave a small piece."""
    graph = ring(1000)
    window, least = graph.topology.neighbours // 2, graph.topology.window_min
    for start in (0, 990):  # a row may reach over the end of the order
        members = np.ones(1000, bool)
        row = [graph.order[(start + step) % 1000] for step in range(window)]
        members[row[least:]] = False
        graph.require_enough(members, "sent a masked vector")
        members[row[0]] = False
        assert members.sum() >= graph.topology.survivors_min
        with pytest.raises(SecureAggregationError, match=f"{least} are needed to keep it"):
            graph.require_enough(members, "sent a masked vector")


def test_what_a_window_must_hold_keeps_honest_clients_together():
    """Drop all but window_min of each row, corrupt the rest of the row: no cut is left.

    Cutting a ring takes two windows without an honest client, and no two of them have room for
    so many corrupt ones as must be there.
    """
    topology = choose_topology(clients=100, corrupt=0.2, dropout=0.2, complete_max=10)
    assert 2 * topology.window_min > topology.corrupt
    large = choose_topology(clients=1000, corrupt=0.05, dropout=0.05)
    assert 2 * large.window_min >= 23  # P[Hyp(1000, 50, 52) > 22] * 1000^2 / 2 < 2^-41


def test_the_attack_that_the_windows_stop():
    """The server drops the honest clients of two rows, which do cut the others in two.

    A tenth may drop out and a tenth collude: so many that counting alone permits it.
    """
    graph = ring(1000)
    half = graph.topology.neighbours // 2
    corrupt = set(np.random.default_rng(0).choice(1000, graph.topology.corrupt, replace=False))
    rows = [*graph.order[:half], *graph.order[500 : 500 + half]]
    members = np.ones(1000, bool)
    members[[client for client in rows if client not in corrupt]] = False
    assert members.sum() >= graph.topology.survivors_min
    honest = {client for client in range(1000) if members[client] and client not in corrupt}
    assert len(reached(graph, honest)) < len(honest)
    with pytest.raises(SecureAggregationError, match="in one piece"):
        graph.require_enough(members, "sent a masked vector")


def reached(graph: Graph, clients: set[int]) -> set[int]:
    """Return who of some clients is connected with the first of them."""
    seen, edge = {min(clients)}, [min(clients)]
    while edge:
        new = (set(graph.neighbours(edge.pop())) & clients) - seen
        seen |= new
        edge.extend(new)
    return seen
