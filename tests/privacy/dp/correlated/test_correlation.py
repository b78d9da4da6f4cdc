"""Correlated noise: its matrix, what a client can add to it, and the published figure."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
from numpy.typing import NDArray

from meadow.errors import ConfigError
from meadow.privacy.dp.accounting.accountant import epsilon_of
from meadow.privacy.dp.accounting.events import GaussianEvent, SeparatedEvent
from meadow.privacy.dp.claim import claim_of
from meadow.privacy.dp.correlated.correlation import Banded, Correlation, Tree, correlated
from meadow.privacy.dp.correlated.noise_memory import NoiseMemory, seeds_in, seeds_slot
from meadow.privacy.dp.correlated.toeplitz import best_coefficients, inverse_series
from meadow.privacy.dp.mechanisms.clipping import Clipping
from meadow.privacy.dp.mechanisms.noise import generator_from
from meadow.privacy.dp.plan import PrivacyPlan
from meadow.privacy.dp.private_algorithm import private_algorithm
from meadow.strategies.algorithms.fedavg import fedavg

CORRELATIONS: list[Correlation] = [
    Banded(rounds=12, bands=1),
    Banded(rounds=12, bands=4),
    Banded(rounds=40, bands=3),
    Tree(restart=1),
    Tree(restart=4),
    Tree(restart=5),
]
ROUNDS = 12


def noise_matrix(correlation: Correlation, rounds: int = ROUNDS) -> NDArray[np.float64]:
    """Return B with w = B z, row by row as the steps say."""
    kept: dict[int, NDArray[np.float64]] = {}
    rows = []
    for number in range(1, rounds + 1):
        step = correlation.step(number)
        row = step.fresh * np.eye(rounds)[number - 1]
        row = row + sum(factor * kept[each] for each, factor in step.made_of)
        rows.append(row + sum(factor * kept[each] for each, factor in step.beside))
        kept[number] = row
        kept = {each: kept[each] for each in step.stored}
    return np.array(rows)


def plan_of(**changes: Any) -> PrivacyPlan:
    """Return a plan of 12 rounds in which a client waits for four."""
    parts: dict[str, Any] = {
        "noise_multiplier": 1.5,
        "delta": 1e-5,
        "rounds": ROUNDS,
        "cohort": 10.0,
        "population": 1000,
        "sampling": "fixed",
        "separation": 5,
        "clipping": Clipping(clip_norm=0.4),
    }
    return PrivacyPlan(**{**parts, **changes})


@pytest.mark.parametrize("correlation", CORRELATIONS, ids=repr)
def test_columns_are_of_unit_norm_and_apart(correlation: Correlation) -> None:
    """C has columns of norm <= 1, entries <= 1, and `separation` apart no common row."""
    matrix = np.linalg.inv(noise_matrix(correlation))
    norms = np.linalg.norm(matrix, axis=0)
    assert norms.max() == pytest.approx(1.0)
    assert np.abs(matrix).max() <= 1 + 1e-12
    assert np.allclose(np.triu(matrix, 1), 0)
    overlap = (np.abs(matrix) > 1e-12).astype(int)
    for first, later in itertools.combinations(range(ROUNDS), 2):
        if later - first >= correlation.separation:
            assert not (overlap[:, first] @ overlap[:, later])


@pytest.mark.parametrize("correlation", CORRELATIONS, ids=repr)
def test_sums_have_the_variances_that_are_told(correlation: Correlation) -> None:
    """They are the norms of the rows of A B, where A adds up."""
    sums = np.cumsum(noise_matrix(correlation), axis=0)
    assert correlation.sum_variances(ROUNDS) == pytest.approx((sums**2).sum(axis=1))


@pytest.mark.parametrize("correlation", CORRELATIONS[1:3] + CORRELATIONS[4:], ids=repr)
def test_sensitivity_by_brute_force(correlation: Correlation) -> None:
    """Over all ways to take part, k times cost k; taking part more often than that costs more."""
    matrix = np.linalg.inv(noise_matrix(correlation))
    plan = plan_of(correlation=correlation, separation=correlation.separation)
    worst = {True: 0.0, False: 0.0}
    for times in itertools.product((0, 1), repeat=ROUNDS):
        taken = np.flatnonzero(times)
        apart = len(taken) < 2 or np.diff(taken).min() >= correlation.separation
        cost = float((matrix[:, taken].sum(axis=1) ** 2).sum())
        worst[apart] = max(worst[apart], cost)
    assert worst[True] <= plan.counted(ROUNDS) + 1e-9
    assert worst[True] > 0.6 * plan.counted(ROUNDS)
    assert worst[False] > plan.counted(ROUNDS)


@pytest.mark.parametrize("correlation", [Banded(rounds=7, bands=3), Tree(restart=3)], ids=repr)
def test_a_repeated_round_is_never_under_counted(correlation: Correlation) -> None:
    """A crash takes rounds 4 and 5 back, whose noise is known: each counts as once more.

    Brute force: before the crash and after it a client may have taken part differently.
    """
    rounds, kept, lost = 7, 3, 2
    matrix = np.linalg.inv(noise_matrix(correlation, rounds))
    plan = plan_of(correlation=correlation, separation=3)

    def ways(count: int) -> list[tuple[int, ...]]:
        every = itertools.product((0, 1), repeat=count)
        return [way for way in every if (np.diff(np.flatnonzero(way)) >= 3).all()]

    worst = 0.0
    for way in ways(rounds):
        main = float(((matrix @ way) ** 2).sum())
        for before in ways(kept + lost):
            if before[:kept] == way[:kept]:
                undone = matrix[kept : kept + lost, : kept + lost] @ before
                worst = max(worst, main + float((undone**2).sum()))
    assert plan.counted(rounds) < worst <= plan.counted(rounds + lost, (2,) * lost)


def test_gboards_figure() -> None:
    """2,000 rounds, 400 bands, multiplier 1.411, at most 3 participations: (3.42, 1e-10).

    The multiplier is relative to the sensitivity that 400 bands allow for, 2000 / 400 = 5
    participations; clients were 484 rounds apart, and took part 3 times at most.
    Source: Choquette-Choo et al. (2023), the production deployment.
    """
    once = 1.411 * (2000 / 400) ** 0.5
    plan = plan_of(
        noise_multiplier=once,
        delta=1e-10,
        rounds=2000,
        population=10**7,
        separation=484,
        participations_max=3,
        correlation=Banded(rounds=2000, bands=400),
    )
    assert plan.epsilon() == pytest.approx(3.42, abs=0.005)
    theirs = dp_accounting.get_epsilon_gaussian(1.411 * (5 / 3) ** 0.5, 1e-10)
    assert plan.epsilon() == pytest.approx(theirs, rel=1e-6)
    assert replace(plan, participations_max=None).counted(2000) == 5


@pytest.mark.parametrize(("rounds", "bands"), [(6, 2), (30, 5), (30, 30), (400, 8)])
def test_the_coefficients_are_the_best(rounds: int, bands: int) -> None:
    """No small change of them has a smaller error; independent noise has a far larger one."""

    def error(coefficients: NDArray[np.float64]) -> float:
        inverse = inverse_series(coefficients, rounds)
        sums = np.cumsum(np.cumsum(inverse) ** 2)
        return float(sums.mean() * (coefficients**2).sum())

    best = np.array(best_coefficients(rounds, bands))
    assert np.linalg.norm(best) == pytest.approx(1.0)
    draw = np.random.default_rng(4)
    for scale in (1e-3, 1e-2, 0.1):
        for _ in range(30):
            assert error(best) < error(best + scale * draw.normal(size=bands))
    assert error(best) < 0.75 * error(np.eye(bands)[0])


def test_two_bands_by_hand() -> None:
    """For two rounds, c = (1, x): the error (1 + x^2)(1 + 1 + (1 - x)^2) is least at 0.4302."""
    first, second = best_coefficients(2, 2)
    grid = np.linspace(0, 1, 100_001)
    by_hand = grid[np.argmin((1 + grid**2) * (2 + (1 - grid) ** 2))]
    assert second / first == pytest.approx(by_hand, abs=1e-4)


@pytest.mark.parametrize("correlation", [Banded(rounds=9, bands=4), Tree(restart=4)], ids=repr)
def test_rows_are_those_of_the_matrix_and_come_again(correlation: Correlation) -> None:
    """Row t is sum of B z; who knows only the seeds makes the same bits, whatever came before."""
    seeds = tuple(bytes([number]) * 32 for number in range(9))
    fresh = np.array([generator_from(seed).standard_normal(20_000) for seed in seeds])
    wanted = noise_matrix(correlation, 9) @ fresh
    going = NoiseMemory(correlation)
    for place, seed in enumerate(seeds):
        row = going.row(seeds[:place], seed, 20_000)
        assert np.allclose(row, wanted[place], atol=1e-5)
        again = NoiseMemory(correlation).row(seeds[:place], seed, 20_000)
        assert np.array_equal(row, again)
    other = going.row(seeds[:2], seeds[7], 20_000)
    assert np.array_equal(other, NoiseMemory(correlation).row(seeds[:2], seeds[7], 20_000))
    assert seeds_in(seeds_slot(seeds)) == seeds and seeds_in(seeds_slot(())) == ()


@pytest.mark.parametrize("kind", ["banded", "tree"])
def test_what_is_released_is_noise_of_the_planned_scale(kind: str) -> None:
    """C times the released noise is independent and of the planned variance; 3 % off is told."""
    correlation = correlated(kind, rounds=6, separation=5, bands=3)
    plan = plan_of(correlation=correlation)
    private = private_algorithm(plan, fedavg())
    state = private.init({"a": np.zeros((100, 300)), "b": np.zeros(10_000, np.float32)})
    rows = []
    for _ in range(6):
        now = private.at(state)
        after = private.apply(state, now.aggregator.finish(now.aggregator.zero(state.params)))
        rows.append(np.concatenate([(after.params[k] - state.params[k]).ravel() for k in "ab"]))
        state = after
    assert correlation is not None
    fresh = np.linalg.inv(noise_matrix(correlation, 6)) @ np.array(rows)
    variance = (1.5 * 0.4 / 10) ** 2
    found = fresh @ fresh.T / fresh.shape[1]
    bound = 5 * (2 / fresh.shape[1]) ** 0.5
    assert np.abs(found / variance - np.eye(6)).max() < bound < 1.03**2 - 1
    assert np.abs(np.corrcoef(np.array(rows))[1, 0]) > 0.1  # and what is released is not


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sampling": "poisson"}, 'must be "fixed"'),
        ({"separation": 3}, "min_separation must be >= 4"),
        ({"separation": 3, "correlation": Tree(restart=8)}, "min_separation must be >= 8"),
        ({"sampling": "poisson", "correlation": None}, 'must be "fixed"'),
        ({"participations_max": 0}, "participations_max must be a whole number >= 1"),
    ],
)
def test_what_breaks_the_assumption_is_refused(changes: dict[str, Any], says: str) -> None:
    """A plan with noise that reaches over more rounds than clients wait for cannot be made."""
    with pytest.raises(ConfigError, match=says):
        plan_of(**{"correlation": Banded(rounds=12, bands=4), **changes})


def test_the_event_and_the_count_are_those_of_turns() -> None:
    """A participation costs one Gaussian release; there are as many as the wait lets there be."""
    plan = plan_of(correlation=Tree(restart=5))
    once = GaussianEvent(noise_multiplier=1.5)
    assert isinstance(plan.event, SeparatedEvent) and plan.event.event == once
    assert [plan.counted(n) for n in (0, 1, 5, 6, 10, 11)] == [0, 1, 1, 2, 2, 3]
    assert plan.counted(13, (2, 2)) == plan.counted(11) + 2
    assert plan.epsilon() == epsilon_of(once, count=3, delta=1e-5)
    assert replace(plan, participations_max=2).counted(12) == 2
    claim = claim_of(plan, 14, (2, 2))
    for part in (
        "after 5 rounds at the earliest",
        "3 times at most",
        "2 of the releases repeated a round",
    ):
        assert part in claim
    assert "correlated over 5 rounds (tree)" in claim
