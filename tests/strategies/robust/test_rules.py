"""Robust rules by hand, their laws, and their conditions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meadow.errors import ConfigError, RunError
from meadow.flower.messages import params_to_arrays
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.algorithms.fedprox import fedprox
from meadow.strategies.algorithms.scaffold import scaffold
from meadow.strategies.robust.aggregator import RobustAggregator, robust
from meadow.strategies.robust.coordinates import mean_around_median
from meadow.strategies.robust.rules import AGGREGATIONS, PREAGGREGATIONS, robust_rule
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan

ARGUMENTS = {"clip_norm": 2.0, "trusted": 1}


def combine(kit, rows, aggregation, **arguments):
    """Return what a rule makes of rows as changes of params that are all zero."""
    rows = np.asarray(rows, np.float64)
    aggregator = RobustAggregator(rule=robust_rule(aggregation, **arguments))
    total = aggregator.zero({"w": np.zeros(rows.shape[1])})
    updates = [kit.update(client + 1, 1.0, {"w": row}) for client, row in enumerate(rows)]
    return aggregator.finish(aggregator.fold(total, updates)).mean["w"]


def test_median_and_trimmed_mean_by_hand(kit):
    """Of two values by five clients, the extreme ones do not count."""
    rows = [[1, 10], [2, 20], [3, 30], [4, 40], [1000, -1000]]
    assert combine(kit, rows, "median", byzantine=2).tolist() == [3, 20]
    assert combine(kit, rows, "trimmed_mean", byzantine=1).tolist() == [3, 20]


def test_krum_by_hand(kit):
    """Krum keeps one row as it is: the one with the nearest neighbours."""
    rows = [[0.0], [1.0], [2.1], [50.0], [-70.0]]
    # of three neighbours, 50 is one for each of the first three rows, and 2.1 is nearest to it
    assert combine(kit, rows, "krum", byzantine=1).tolist() == [2.1]
    # -70 alone has the worst score: (0 + 1 + 2.1 + 50) / 4
    assert combine(kit, rows, "multi_krum", byzantine=1).tolist() == pytest.approx([53.1 / 4])


def test_bulyan_by_hand(kit):
    """Bulyan chooses five of seven rows by Krum, and averages the three next to their median."""
    rows = [[0.0], [1.0], [2.0], [3.0], [4.0], [5.5], [1e6]]
    chosen = brute_bulyan(np.array(rows)[:, 0], byzantine=1)
    assert combine(kit, rows, "bulyan", byzantine=1).tolist() == pytest.approx([chosen])


def brute_bulyan(values, *, byzantine):
    """Bulyan of numbers, as the paper says it, without any care for speed."""
    left, chosen = list(values), []
    while len(chosen) < len(values) - 2 * byzantine:
        near = max(1, len(left) - byzantine - 1)
        scores = [np.mean(sorted((a - b) ** 2 for b in left)[1 : near + 1] or [0]) for a in left]
        chosen.append(left.pop(int(np.argmin(scores))))
    middle = np.median(chosen)
    return np.mean(sorted(chosen, key=lambda value: abs(value - middle))[: -2 * byzantine])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), byzantine=st.integers(1, 2))
def test_bulyan_is_that_of_the_paper(kit, seed, byzantine):
    """Bulyan of random numbers is what its definition says."""
    values = np.random.default_rng(seed).standard_normal(4 * byzantine + 3)
    found = combine(kit, values[:, None], "bulyan", byzantine=byzantine)
    assert found[0] == pytest.approx(brute_bulyan(values, byzantine=byzantine))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), byzantine=st.integers(1, 4))
def test_mda_is_the_best_of_all_subsets(kit, seed, byzantine):
    """The search finds the subset that trying all of them finds."""
    rows = np.random.default_rng(seed).standard_normal((9, 2)).round(1)

    def diameter(subset):
        return max(sum((rows[a] - rows[b]) ** 2) for a, b in itertools.combinations(subset, 2))

    subsets = list(itertools.combinations(range(9), 9 - byzantine))
    best = min(diameter(subset) for subset in subsets)
    found = combine(kit, rows, "mda", byzantine=byzantine)
    means = [rows[list(s)].mean(axis=0) for s in subsets if diameter(s) <= best * (1 + 1e-9)]
    assert any(np.allclose(found, mean) for mean in means)


def test_fltrust_by_hand(kit):
    """Updates get the trusted one's norm and the weight of their cosine; opposite ones none."""
    rows = [[2.0, 0.0], [10.0, 0.0], [3.0, 3.0], [-5.0, 0.0]]
    half = np.sqrt(0.5)
    expected = (np.array([2.0, 0.0]) + half * np.array([2 * half, 2 * half])) / (1 + half)
    assert combine(kit, rows, "fltrust", trusted=1) == pytest.approx(expected)
    assert combine(kit, [[1.0, 0.0], [-1.0, 0.0]], "fltrust", trusted=1).tolist() == [1.0, 0.0]
    with pytest.raises(RunError, match="trusted client 9"):
        combine(kit, rows, "fltrust", trusted=9)


def test_clipping_and_the_mean_bound_norms(kit):
    """Norm bounding: a long update counts as one of the greatest norm."""
    rows = [[3.0, 4.0], [0.0, 1.0]]
    found = combine(kit, rows, "mean", preaggregation=["clip"], clip_norm=2.0)
    assert found == pytest.approx([0.6, 1.3])


def test_buckets_hold_everybody_once(kit):
    """The mean of equal buckets is the mean of the rows, whatever is drawn."""
    rows = np.random.default_rng(0).standard_normal((8, 3))
    found = combine(kit, rows, "mean", preaggregation=["bucketing"], bucket_size=2)
    np.testing.assert_allclose(found, rows.mean(axis=0), atol=1e-12)
    mixed = combine(kit, rows, "median", preaggregation=["bucketing"], bucket_size=2)
    assert not np.allclose(mixed, np.median(rows, axis=0))


def test_huge_updates_do_no_harm(kit):
    """An update of the largest numbers there are is left out; nothing overflows."""
    honest = np.random.default_rng(1).standard_normal((8, 4))
    rows = np.vstack([honest, np.full((2, 4), 1e289), np.full((1, 4), -1e289)])
    for aggregation in sorted({*AGGREGATIONS} - {"mean", "bulyan"}):
        found = combine(kit, rows, aggregation, byzantine=3, **ARGUMENTS)
        assert np.abs(found).max() < 5, aggregation


def test_counters_become_their_median(kit):
    """Integers and booleans are not in the geometry; each is the middle one of the clients'."""
    like = {"w": np.zeros(2, np.float32), "seen": np.int64(0), "mask": np.array([True, False])}
    aggregator = RobustAggregator(rule=robust_rule("krum", byzantine=0))
    updates = [
        kit.update(i, 1.0, {**like, "seen": np.int64(seen), "mask": np.array([True, i > 1])})
        for i, seen in enumerate((3, 10**15, 7), start=1)
    ]
    mean = aggregator.finish(aggregator.fold(aggregator.zero(like), updates)).mean
    assert mean["seen"] == 7 and mean["seen"].dtype == np.int64
    assert mean["mask"].tolist() == [True, True]


@pytest.mark.parametrize(
    ("aggregation", "needed"),
    [
        ("median", 5),
        ("trimmed_mean", 5),
        ("mda", 5),
        ("krum", 7),
        ("multi_krum", 7),
        ("bulyan", 11),
    ],
)
def test_conditions_on_the_clients_hold(kit, aggregation, needed):
    """With f = 2 a rule takes what it needs, and refuses one update fewer."""
    rows = np.random.default_rng(0).standard_normal((needed, 2))
    assert np.isfinite(combine(kit, rows, aggregation, byzantine=2)).all()
    with pytest.raises(RunError, match=f"at least {needed} clients, and {needed - 1} are valid"):
        combine(kit, rows[1:], aggregation, byzantine=2)
    bucketed = robust_rule(aggregation, byzantine=2, preaggregation=["bucketing"], bucket_size=3)
    assert -(-bucketed.clients_min // 3) == needed
    assert -(-(bucketed.clients_min - 1) // 3) == needed - 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"aggregation": "mode"}, "aggregation must be one of"),
        ({"aggregation": "mean", "preaggregation": ["clip"]}, "clip_norm must be set"),
        ({"aggregation": "centred_clipping"}, "clip_norm must be set"),
        ({"aggregation": "fltrust"}, "needs trusted"),
        ({"aggregation": "fltrust", "trusted": 1, "preaggregation": ["nnm"]}, "no nnm"),
        ({"aggregation": "mda", "byzantine": 17}, "must be <= 16"),
        ({"aggregation": "krum", "byzantine": -1}, "byzantine must be"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, text):
    """A rule that cannot be is refused with a sentence."""
    with pytest.raises(ConfigError, match=text):
        robust_rule(**arguments)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_order_of_arrival_changes_no_bit(kit, aggregation):
    """Replies may come in any order, after every pre-aggregation that fits; then Adam steps."""
    before = [n for n in PREAGGREGATIONS if aggregation != "fltrust" or "clip" in n]
    rule = robust_rule(aggregation, byzantine=1, preaggregation=before, **ARGUMENTS)

    def run(order):
        grid = kit.Grid(kit.drift, range(1, 14), order)
        algorithm = robust(fedavg(server_optimizer="adam"), rule=rule)
        strategy = FederatedStrategy(algorithm, RoundPlan(seed=3, min_clients=13))
        result = strategy.start(grid, params_to_arrays(kit.model()), num_rounds=3)
        return {name: array.numpy().tobytes() for name, array in result.arrays.items()}

    assert run(None) == run(lambda replies: replies[::-1]) == run(lambda r: r[5:] + r[:5])


def test_whatever_adds_updates_up_is_refused(kit):
    """Neither a grid that combines nor an update of several clients goes with single updates."""
    algorithm = robust(fedprox(proximal_mu=0.1), rule=robust_rule("median", byzantine=1))
    assert (algorithm.linear, algorithm.client_config) == (False, {"proximal-mu": 0.1})
    grid = kit.Grid(kit.drift, range(1, 4))
    grid.combines_updates = True
    strategy = FederatedStrategy(algorithm, RoundPlan())
    with pytest.raises(ConfigError, match="needs every single update"):
        strategy.start(grid, params_to_arrays(kit.model()), num_rounds=1)
    with pytest.raises(ConfigError, match="in its own way"):
        robust(algorithm, rule=robust_rule("median"))


def test_an_algorithm_whose_clients_send_more_than_params_is_refused() -> None:
    """The median of SCAFFOLD's control variates would be no control variate."""
    with pytest.raises(ConfigError, match="scaffold aggregates in its own way"):
        robust(scaffold(participation=1.0), rule=robust_rule("median", byzantine=1))


def test_a_huge_value_leaves_no_trace_in_the_mean_around_the_median() -> None:
    """Values of 1e30 on either side are left out, and the others' mean is exact."""
    ordered = np.array([[-1e30, 0.25, 0.5, 0.75, 1e30]], np.float32)
    assert mean_around_median(1)(ordered).tolist() == [0.5]
