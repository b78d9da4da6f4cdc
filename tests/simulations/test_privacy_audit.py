"""An audit of whole runs: vectorized simulations with and without a client, told apart as noise allows.

Many canaries: each takes part in a run or not by its own coin, and if it does, pushes a param of its
own far beyond the clip. Their params' noises are independent, so a run is as many trials at once, each
about one client that is there or not. Whoever knows a canary's param, and the mechanism, takes
correlations off and adds up what the releases have of it, and says "took part" above a threshold.
With false positives a and false negatives b, both with 99.9 % confidence, 1 - b <= e^epsilon a + delta
for every delta and its epsilon (Kairouz, Oh, Viswanath 2015). A run that breaks this has less noise,
other sampling or other turns than it accounts for. Large deltas, where epsilon is below 1, decide:
there few trials tell most.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from scipy.stats import beta

import meadow
from meadow.config.load import make_config
from meadow.config.rules.privacy import build_privacy
from meadow.config.sections.model import Config
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.privacy.dp import plan as plan_module
from meadow.privacy.dp.correlated.correlation import Correlation
from meadow.privacy.dp.mechanisms import mechanism as mechanism_module
from meadow.privacy.dp.plan import PrivacyPlan
from meadow.run.app import initial_arrays, run_rounds
from meadow.simulations.executors.vectorized.executor import VectorizedExecutor
from meadow.simulations.grids.simulation_grid import SimulationGrid
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.rounds.recorder import Checkpoint

identify_process(run_id=1, node_id=0)

CANARIES, CLIENTS, RUNS, ROUNDS = 200, 210, 24, 4
DELTAS = (0.1, 0.2, 0.3, 0.4)
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
    private = {"enabled": True, "noise_multiplier": noise, "delta": 1e-3, "clip": 0.5, **dp}
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
    assert isinstance(plan, PrivacyPlan)
    matrix = np.eye(ROUNDS) if plan.correlation is None else fresh_noise(plan.correlation)
    there, gone = [], []
    for _ in range(RUNS):
        inside = coins.random(CANARIES) < 0.5
        found = statistics(released(config, inside), matrix) * plan.cohort / plan.clipping.clip_norm
        there.append(found[inside])
        gone.append(found[~inside])
    return np.concatenate(there), np.concatenate(gone)


def excess(config: Config) -> float:
    """Return by how much the runs contradict what is claimed of them: at most 0 if they do not."""
    plan = build_privacy(config)
    assert isinstance(plan, PrivacyPlan)
    there, gone = trials(config)
    threshold = (there.mean() + gone.mean()) / 2
    alarms = _at_most(int((gone > threshold).sum()), len(gone))
    misses = _at_most(int((there <= threshold).sum()), len(there))
    claims = [(delta, replace(plan, delta=delta).epsilon()) for delta in DELTAS]
    return max(1 - misses - math.exp(epsilon) * alarms - delta for delta, epsilon in claims)


def _at_most(count: int, total: int) -> float:
    """Return what a probability is at most (Clopper, Pearson 1934), with 99.9 % confidence."""
    return float(beta.ppf(0.999, count + 1, total - count)) if count < total else 1.0


KINDS: dict[str, dict[str, Any]] = {
    "poisson": {"noise": 1.0, "sampling": "poisson"},
    "fixed": {"noise": ROUNDS**0.5, "sampling": "fixed"},
    "banded": {"noise": 2**0.5, "sampling": "fixed", "correlation": "banded"},
    "tree": {"noise": 2**0.5, "sampling": "fixed", "correlation": "tree"},
}


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let all entropy be the same in every run of the tests."""
    numbers = itertools.count()
    monkeypatch.setattr(
        "secrets.token_bytes",
        lambda size: hashlib.shake_256(next(numbers).to_bytes(8, "big")).digest(size),
    )
    return monkeypatch


@pytest.mark.parametrize("kind", KINDS)
def test_runs_are_as_private_as_claimed(kind: str, patched: pytest.MonkeyPatch) -> None:
    """Nothing contradicts the claim, and little more would."""
    assert -0.25 < excess(configured(**KINDS[kind])) <= 0


@pytest.mark.parametrize("kind", KINDS)
def test_less_noise_is_caught(kind: str, patched: pytest.MonkeyPatch) -> None:
    """Runs with two thirds of the noise that is accounted for."""
    blocks = mechanism_module.NoisyBlocks
    patched.setattr(
        mechanism_module,
        "NoisyBlocks",
        lambda *given, noise_stddev, **more: blocks(
            *given, noise_stddev=noise_stddev / 1.5, **more
        ),
    )
    assert excess(configured(**KINDS[kind])) > 0


def test_coins_that_always_fall_the_same_way_are_caught(patched: pytest.MonkeyPatch) -> None:
    """Everybody takes part every time, where half of them are accounted for."""
    patched.setattr(plan_module, "draw_poisson", lambda present, *given: list(present))
    assert excess(configured(**KINDS["poisson"])) > 0
