"""An audit: many vectorized simulations with and without a client, told apart as noise allows.

Forty canaries: each takes part in a run or not by its own coin, and if it does, pushes a param of
its own far beyond the clip. Their params' noises are independent, so a run is forty trials at once,
each about one client that is there or not. Whoever knows a canary's param, and the mechanism, takes
correlations off and adds up what the releases have of it, and says "took part" above a threshold.
With false positives a and false negatives b, both with 99.9 % confidence, epsilon is at least
ln((1 - delta - b) / a) (Kairouz, Oh, Viswanath 2015). That is below the claim unless the noise, the
sensitivity, the sampling, the turns or the executor is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from scipy.stats import beta

import meadow
from meadow.config import Config, make_config
from meadow.flower import arrays_to_params, identify_process, params_to_arrays
from meadow.privacy.dp.correlation import Correlation
from meadow.private_config import build_privacy
from meadow.server.app import initial_arrays, run_rounds
from meadow.simulations.clients import SimulatedClients
from meadow.simulations.executors.vectorized import VectorizedExecutor
from meadow.simulations.grid import SimulationGrid
from meadow.strategies.recorder import Checkpoint

identify_process(run_id=1, node_id=0)

CANARIES, CLIENTS, RUNS, ROUNDS = 40, 50, 60, 4
DELTA = 1e-3
Reals = NDArray[np.float64]


class Nobody:
    """The executor of what cannot be vectorized: here that is a failure."""

    name, combines = "nobody", True

    def execute(self, messages: Any) -> Any:
        raise AssertionError("the cohort was not vectorized")

    def close(self) -> None: ...


class Releases:
    """A recorder that keeps the params of every round, and who was drawn for it by turns."""

    def __init__(self, before: Mapping[str, Any]) -> None:
        self.params: list[Reals] = [before["weight"][0].astype(float)]
        self.drawn: list[NDArray[np.bool_]] = []

    def resume(self) -> None: ...

    def event(self, kind: str, detail: Any) -> None: ...

    def commit(self, checkpoint: Checkpoint, row: Any, table: Any) -> ArrayRecord:
        state = checkpoint.state
        self.params.append(state.params["weight"][0].astype(float))
        memory: Mapping[str, Any] = state.slots.get("clients", {})
        drawn = np.ones(CLIENTS, bool)
        if memory:
            asked = memory["clients"][memory["drawn"] == state.round]
            drawn = np.isin(np.arange(1, CLIENTS + 1), asked)
        self.drawn.append(drawn)
        return params_to_arrays(dict(state.params))


def configured(noise: float, **dp: Any) -> Config:
    """Return the settings of a run: with coins, with everybody every time, or by turns."""
    turns = 2 if "correlation" in dp else 1
    cohort = CLIENTS if (turns, dp["sampling"]) == (1, "fixed") else CLIENTS // 2
    private = {"enabled": True, "noise_multiplier": noise, "delta": DELTA, "clip": 0.5, **dp}
    return make_config(
        {
            "run": {"rounds": ROUNDS, "cohort": cohort, "min_clients": 1},
            "selection": {"min_separation": turns},
            "training": {"learning_rate": 0.01},
            "evaluation": {"every": 0},
            "simulation": {"clients": CLIENTS},
            "privacy": {"differential_privacy": private},
        }
    )


def released(config: Config, inside: NDArray[np.bool_]) -> Releases:
    """Run a federation in which these canaries take part."""

    def load(site: meadow.Site) -> meadow.ClientData:
        inputs = torch.zeros(1, CANARIES + 1)
        if site.index >= CANARIES:
            inputs[0, CANARIES] = 1.0
        elif inside[site.index]:
            inputs[0, site.index] = 100.0
        return meadow.ClientData(train=(inputs, torch.full((1, 1), 1000.0)))

    task = meadow.Task(
        model=lambda: torch.nn.Linear(CANARIES + 1, 1, bias=False),
        loss=lambda outputs, targets: ((outputs - targets) ** 2).mean(dim=1),
        client_data=load,
    )
    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    executor = VectorizedExecutor(task, clients, device="cpu", combine=True, other=Nobody())
    before = arrays_to_params(initial_arrays(task, config.run.seed))
    kept = Releases(before)
    run_rounds(task, config, SimulationGrid(executor, clients), recorder=kept)
    return kept


def fresh_noise(correlation: Correlation) -> Reals:
    """Return C, with which released noise is as if it were drawn round by round."""
    unit: dict[int, Reals] = {}
    rows = []
    for number in range(1, ROUNDS + 1):
        step = correlation.step(number)
        row = step.fresh * np.eye(ROUNDS)[number - 1]
        unit[number] = row + sum(factor * unit[each] for each, factor in step.made_of)
        rows.append(unit[number] + sum(factor * unit[each] for each, factor in step.beside))
    return np.linalg.inv(np.array(rows))


def statistics(kept: Releases, matrix: Reals) -> Reals:
    """Return what the releases have of each canary, were it there in the rounds of its turn."""
    changes = matrix @ np.diff(np.array(kept.params), axis=0)[:, :CANARIES]
    turns = matrix @ np.array(kept.drawn, float)[:, :CANARIES]
    return np.asarray((changes * turns).sum(axis=0) / np.linalg.norm(turns, axis=0))


def trials(config: Config) -> tuple[Reals, Reals]:
    """Return the statistics of canaries that took part, and of those that did not."""
    plan, coins = build_privacy(config), np.random.default_rng(5)
    assert plan is not None
    matrix = np.eye(ROUNDS) if plan.correlation is None else fresh_noise(plan.correlation)
    there, gone = [], []
    for _ in range(RUNS):
        inside = coins.random(CANARIES) < 0.5
        found = statistics(released(config, inside), matrix)
        there.append(found[inside])
        gone.append(found[~inside])
    return np.concatenate(there), np.concatenate(gone)


def lower_bound(inside: Reals, outside: Reals) -> float:
    """Return the largest epsilon that the first halves' best threshold proves on the others."""
    tried, held = (
        [each[part] for each in (inside, outside)]
        for part in (slice(None, None, 2), slice(1, None, 2))
    )
    thresholds = np.quantile(tried[1], [0.5, 0.8, 0.9, 0.95, 0.98, 0.99])
    found = [_proven(*tried, float(each)) for each in thresholds]
    return _proven(*held, float(thresholds[int(np.argmax(found))]))


def _proven(inside: Reals, outside: Reals, threshold: float) -> float:
    alarms = _at_most(int((outside > threshold).sum()), len(outside))
    misses = _at_most(int((inside <= threshold).sum()), len(inside))
    return math.log(max(1 - DELTA - misses, 1e-9) / alarms)


def _at_most(count: int, total: int) -> float:
    """Return what a probability is at most (Clopper, Pearson 1934), with 99.9 % confidence."""
    return float(beta.ppf(0.999, count + 1, total - count)) if count < total else 1.0


@pytest.mark.parametrize(
    "dp",
    [
        {"sampling": "poisson"},
        {"sampling": "fixed"},
        {"sampling": "fixed", "correlation": "banded"},
        {"sampling": "fixed", "correlation": "tree"},
    ],
    ids=["poisson", "fixed", "banded", "tree"],
)
def test_the_measured_epsilon_is_below_the_claimed(dp: dict[str, Any]) -> None:
    """And not trivially so: the canary is seen."""
    config = configured(1.0, **dp)
    plan = build_privacy(config)
    assert plan is not None
    measured = lower_bound(*trials(config))
    assert 0.5 < measured <= plan.epsilon()


def test_it_finds_noise_that_is_too_small() -> None:
    """A run with a sixth of the noise that is accounted for is caught."""
    claimed = build_privacy(configured(6.0, sampling="fixed"))
    assert claimed is not None
    assert lower_bound(*trials(configured(1.0, sampling="fixed"))) > claimed.epsilon()
