"""Parameters: the reference table, exact tails by enumeration, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest

from meadow.errors import ConfigError
from meadow.privacy.secagg.protocol.plan import Minimum, plan_secure_sum
from meadow.privacy.secagg.protocol.tails import (
    disconnects,
    largest_rarely_below,
    smallest_rarely_above,
)
from meadow.privacy.secagg.protocol.topology import Topology, choose_topology, ring_degree

REFERENCE = [
    # clients, corrupt and lost, semi-honest k and t, semi-malicious k and t
    (100, 5, (12, 6), (16, 11)),
    (100, 10, (22, 11), (32, 22)),
    (100, 20, (40, 21), (62, 42)),
    (1000, 50, (30, 17), (52, 37)),
    (1000, 100, (48, 27), (96, 67)),
    (10_000, 500, (34, 20), (62, 44)),
    (10_000, 1000, (54, 31), (122, 85)),
]


@pytest.mark.parametrize(("clients", "bad", "honest", "malicious"), REFERENCE)
def test_the_reference_table(clients, bad, honest, malicious):
    """k and t as Google's federated-compute computes them for eta = 20."""
    for semi_malicious, expected in ((False, honest), (True, malicious)):
        degree = ring_degree(clients, bad, bad, semi_malicious=semi_malicious)
        assert (degree.neighbours, degree.threshold) == expected


@pytest.mark.parametrize("bound", [Fraction(1, 1000), Fraction(1, 20), Fraction(1, 2)])
@pytest.mark.parametrize(
    ("population", "marked", "drawn"), [(9, 3, 4), (10, 8, 5), (8, 0, 3), (9, 7, 6), (7, 7, 4)]
)
def test_tails_by_enumeration(population, marked, drawn, bound):
    """Against every way to draw."""
    draws = [sum(c < marked for c in chosen) for chosen in combinations(range(population), drawn)]
    above = [Fraction(sum(d > x for d in draws), len(draws)) for x in range(drawn + 1)]
    below = [Fraction(sum(d < t for d in draws), len(draws)) for t in range(drawn + 1)]
    least = min(x for x in range(drawn + 1) if above[x] <= bound)
    most = max(t for t in range(drawn + 1) if below[t] <= bound)
    assert smallest_rarely_above(population, marked, drawn, bound=bound) == least
    assert largest_rarely_below(population, marked, drawn, bound=bound) == most


def test_a_small_ring_that_falls_apart():
    """Six clients, two neighbours each, two gone: 9 of the 15 pairs are not adjacent."""
    apart = sum((b - a) not in (1, 5) for a, b in combinations(range(6), 2))
    assert disconnects(6, 2, 2) == Fraction(apart, 15)
    assert disconnects(6, 1, 2) == 0


@pytest.mark.parametrize("clients", [3, 5, 16, 32, 64, 100])
@pytest.mark.parametrize("corrupt", [0.0, 0.1, 0.33])
def test_thresholds_of_the_complete_graph(clients, corrupt):
    """More than (n + corrupt) / 2, and the fewest that are."""
    topology = choose_topology(clients=clients, corrupt=corrupt, dropout=0.0)
    assert 2 * topology.threshold > clients + topology.corrupt >= 2 * (topology.threshold - 1)
    assert topology.survivors_min == topology.quorum == topology.threshold
    assert not topology.ring


def test_fractions_are_decimal():
    """0.29 of 100 clients are 29, although 0.29 * 100 < 29 in binary."""
    assert choose_topology(clients=100, corrupt=0.29, dropout=0.29).corrupt == 29


@pytest.mark.parametrize(("clients", "ring"), [(100, False), (101, True)])
def test_the_cohort_decides(clients, ring):
    """Above 100 clients, everybody has a few neighbours only."""
    topology = choose_topology(clients=clients, corrupt=0.1, dropout=0.1)
    assert topology.ring is ring
    assert (topology.neighbours < clients - 1) is ring


def test_the_plan_in_words():
    """The sentence that an operator reads."""
    plan = plan_secure_sum(clients=32, corrupt=0.33, dropout=0.3, length=10)
    assert plan.describe().startswith(
        "tolerates 10 of 32 clients dropping out and 10 colluding with the server;"
    )
    ring = plan_secure_sum(clients=200, corrupt=0.05, dropout=0.05, length=10)
    assert "masked against 30 neighbours, 21 shares" in ring.describe()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"clients": 2}, "clients must be"),
        ({"clients": 70_000}, "clients must be"),
        ({"clients": 3.0}, "clients must be"),
        ({"corrupt": 1.0}, "corrupt must be a fraction"),
        ({"corrupt": -0.1}, "corrupt must be a fraction"),
        ({"dropout": "0.1"}, "dropout must be a fraction"),
        ({"corrupt": 0.5, "dropout": 0.3}, "lower dropout"),
        ({"clients": 12, "corrupt": 0.4, "dropout": 0.25, "complete_max": 3}, "no ring of 12"),
        ({"clients": 32, "weight_max": 2048}, "could overflow"),
    ],
)
def test_unsafe_plans_are_refused(arguments, text):
    """When the configuration is read, not in the first round."""
    with pytest.raises(ConfigError, match=text):
        plan_secure_sum(
            **{"clients": 32, "length": 10, "corrupt": 0.1, "dropout": 0.1, **arguments}
        )


@pytest.mark.parametrize(
    "change",
    [{"threshold": 1}, {"threshold": 10}, {"quorum": 10}, {"survivors_min": 3}, {"corrupt": 16}],
)
def test_no_topology_below_the_bounds_can_be_made(change):
    """Not even by hand, as by somebody who got the plan from a server."""
    good = choose_topology(clients=16, corrupt=0.33, dropout=0.3)
    fields = {name: getattr(good, name) for name in Topology.__slots__}
    with pytest.raises(ConfigError, match="protect no client"):
        Topology(**{**fields, **change})


@pytest.mark.parametrize(
    "minimum", [Minimum(clients=17), Minimum(survivors=12), Minimum(corrupt=6)]
)
def test_a_client_insists_on_its_own_minimum(kit, minimum):
    """A cohort, a sum or a threshold below it is refused before a key is made."""
    cohort = kit.Cohort(16)
    with pytest.raises(ConfigError, match="for this client"):
        cohort.client("site-000", minimum=minimum)
