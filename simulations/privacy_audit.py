"""An audit of one release: how well an attacker detects a member, beside what the claim allows.

Many canaries push a value far beyond the clip, or do not take part. Each is one trial of the run's own
mechanism. An attacker who knows the canary answers "member" above a threshold: with false positives a and
false negatives b, both bounded with 99.9 % confidence, the release is not more private than a test
with these errors allows.

Sources: Jagielski, Ullman, Oprea, "Auditing differentially private machine learning" (2020); Steinke,
Nasr, Jagielski, "Privacy auditing with one (1) training run" (2023): many canaries at once; Dong,
Roth, Su, "Gaussian differential privacy" (2019): a test's errors bound mu.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError
from ..flower.messages import MemoryTensor
from ..privacy.dp.accounting.events import ConcentratedEvent, GaussianEvent, LaplaceEvent
from ..privacy.dp.accounting.gaussian import epsilon_of_cost
from ..privacy.dp.correlated.noise_memory import NoiseMemory, NoisePast
from ..privacy.dp.example_plan import ExamplePlan
from ..privacy.dp.mechanisms.clipping import WITHIN_KEY
from ..privacy.dp.mechanisms.local import noisy_update
from ..privacy.dp.mechanisms.mechanism import PrivateMean
from ..privacy.dp.plan import PrivacyPlan
from ..privacy.secagg.protocol.noisy_encoding import NoisyEncoding
from ..strategies.algorithms.algorithm import Update
from ..task import ClientData, Site, Task
from ..training.loop.dp_sgd import train_dp_sgd
from ..training.module_params import build_module
from ..training.settings import TrainingSettings
from .executors.vectorized.cohort_data import CohortData
from .executors.vectorized.stacked_dp_sgd import train_stacked_dp_sgd
from .executors.vectorized.stacked_module import StackedModule

__all__ = ["AuditResult", "audit", "judged"]

CONFIDENCE = 0.999
SUM_CLIENTS = 32
"""Of a noisy sum: each has a value of its own."""
ROUNDS = 4
"""Of correlated noise: a canary is in the first one, and what follows takes noise back."""
CLIENT_EXAMPLES = 400
"""Of a client: as many that are there as that are gone."""
SETTINGS = TrainingSettings(learning_rate=1.0, epochs=1)
Reals = NDArray[np.float64]
Released = GaussianEvent | ConcentratedEvent | LaplaceEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """What an audit found, as epsilon of one release at `delta`.

    Attributes:
        claimed: what the event that is accounted for costs.
        measured: what the release proves at least, with 99.9 % confidence for each error.
        measurable: what a release without any noise would have proven with as many trials.
    """

    mechanism: str
    trials: int
    delta: float
    claimed: float
    measured: float
    measurable: float

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts the claim."""
        return self.measured <= self.claimed


def audit(plan: PrivacyPlan | ExamplePlan, *, trials: int = 20_000) -> list[AuditResult]:
    """Try each of a plan's mechanisms alone; the claim is that of one release that a client took
    part in.

    Amplification by sampling, and the sum over rounds, are the accountant's and not looked at. Of an
    adaptive clip the params and the count are two mechanisms; what both together cost is the
    accountant's, too. DP-SGD is tried with one step of all examples, on a client, where Opacus is
    installed, and in a vectorised simulation.
    """
    if isinstance(plan, ExamplePlan):
        step = GaussianEvent(noise_multiplier=plan.noise_multiplier)
        ways = {"": _dp_sgd, ", vectorised": _stacked_dp_sgd}
        if find_spec("opacus") is None:
            del ways[""]
        return [
            judged(plan.mechanism_name + beside, step, *way(plan, trials), delta=plan.delta)
            for beside, way in ways.items()
        ]
    name, delta = plan.mechanism_name, plan.delta
    if plan.noise_terms.is_local:
        return [judged(name, plan.noise_terms.event, *_local(plan, trials), delta=delta)]
    if plan.noise_terms.is_distributed:
        return [judged(name, plan.noise_terms.event, *_distributed(plan, trials), delta=delta)]
    mechanism = plan.mechanism(plan.clipping)
    noise = GaussianEvent(noise_multiplier=mechanism.noise_multiplier)
    findings = [judged(name, noise, *_central(plan, trials), delta=delta)]
    if mechanism.count_noise_stddev is not None:
        clients = max(1, round(2 * mechanism.count_noise_stddev))
        noise = GaussianEvent(noise_multiplier=2 * mechanism.count_noise_stddev / clients)
        name = f"Gaussian count of clients within the clip, {clients} of them at once"
        found = _count(mechanism, clients, trials)
        findings.append(judged(name, noise, *found, delta=delta))
    return findings


def judged(
    mechanism: str, event: Released, there: Reals, gone: Reals, *, delta: float
) -> AuditResult:
    """Return what statistics prove, of those who were there (near 1) and of those who were not."""
    trials = min(len(there), len(gone))
    epsilon_of = _scale_of(event, delta)
    # of Laplace noise the odds are the same from 1 on: there, alarms are the fewest
    threshold = 1.0 if isinstance(event, LaplaceEvent) else 0.5
    alarms = _at_most(int((gone > threshold).sum()), len(gone))
    misses = _at_most(int((there <= threshold).sum()), len(there))
    none = _at_most(0, trials)
    return AuditResult(
        mechanism=mechanism,
        trials=trials,
        delta=delta,
        claimed=_claimed(event, delta),
        measured=epsilon_of(alarms, misses),
        measurable=epsilon_of(none, none),
    )


def _claimed(event: Released, delta: float) -> float:
    """Return the epsilon of a release; whole numbers' noise as the Gaussian noise that it stands for."""
    return event.epsilon if isinstance(event, LaplaceEvent) else epsilon_of_cost(event.cost, delta)


def _scale_of(event: Released, delta: float) -> Callable[[float, float], float]:
    """Return how much errors of a test prove, on the scale on which the event's claim is exact."""
    quantile = NormalDist().inv_cdf

    def gaussian(alarms: float, misses: float) -> float:
        mu = max(0.0, -quantile(alarms) - quantile(misses))
        return epsilon_of_cost(mu**2, delta)

    def pure(alarms: float, misses: float) -> float:
        return max(0.0, math.log((1 - misses) / alarms), math.log((1 - alarms) / misses))

    return pure if isinstance(event, LaplaceEvent) else gaussian


def _at_most(count: int, total: int) -> float:
    """Return what a probability is at most (Chernoff 1952; Hoeffding 1963, theorem 1)."""
    seen, low, high = count / total, count / total, 1.0 - 1e-12
    for _ in range(100):
        middle = (low + high) / 2
        apart = _term(seen, middle) + _term(1 - seen, 1 - middle)
        low, high = (middle, high) if total * apart < -math.log(1 - CONFIDENCE) else (low, middle)
    return high


def _term(seen: float, presumed: float) -> float:
    return seen * math.log(seen / presumed) if seen else 0.0


# ---------------------------------------------------------------------- mechanisms


def _central(plan: PrivacyPlan, trials: int) -> tuple[Reals, Reals]:
    """One param a canary, all in the same rounds; noise of later rounds is taken off."""
    size, clip = 2 * trials, plan.clipping.clip_norm
    before = {"w": np.zeros(size)}
    memory = None if plan.correlation is None else NoiseMemory(plan.correlation)
    rounds, found = (1 if memory is None else ROUNDS), []
    seeds: tuple[bytes, ...] = ()
    for number in range(rounds):
        past = None if memory is None else NoisePast(seeds=seeds, memory=memory)
        mechanism = plan.mechanism(plan.clipping, past)
        accumulator = mechanism.zero(before)
        for canary in range(trials if number == 0 else 0):
            accumulator = mechanism.fold(accumulator, [_canary(canary, size, 10 * clip)])
        released = mechanism.finish(accumulator)
        found.append(released.mean["w"] * mechanism.cohort / clip)
        seeds = (*seeds, released.seed or b"")
    statistic = np.array(found)
    if plan.correlation is not None:
        matrix = fresh_noise(plan.correlation, ROUNDS)
        column = matrix[:, 0]
        statistic = column @ (matrix @ statistic) / (column @ column)
    row = statistic.reshape(-1)
    return row[:trials], row[trials:]


def _count(mechanism: PrivateMean, clients: int, trials: int) -> tuple[Reals, Reals]:
    """As many clients within the clip, or none: one alone could hardly be distinguished from noise."""
    before = {"w": np.zeros(1)}
    within = Update(
        client=1,
        params={"w": MemoryTensor(before["w"])},
        weight=1.0,
        metrics={WITHIN_KEY: 1.0},
        clients=clients,
    )

    def released(*updates: Update) -> float:
        accumulator = mechanism.fold(mechanism.zero(before), updates)
        share = mechanism.finish(accumulator).within
        assert share is not None
        return (share - 0.5) * mechanism.cohort * 2 / clients

    there = np.array([released(within) for _ in range(trials)])
    return there, np.array([released() for _ in range(trials)])


def _canary(place: int, size: int, value: float) -> Update:
    return Update(
        client=place + 1,
        params={"w": _OneValue(place, size, value)},
        weight=1.0,
        metrics={WITHIN_KEY: 0.0},
    )


class _OneValue:
    """A `FlatTensor` of zeros and one value."""

    dtype = np.dtype(np.float64)

    def __init__(self, place: int, size: int, value: float) -> None:
        self._place, self._value, self.shape = place, value, (size,)

    def __getitem__(self, values: slice) -> Reals:
        start, stop, _ = values.indices(self.shape[0])
        made = np.zeros(stop - start)
        if start <= self._place < stop:
            made[self._place - start] = self._value
        return made

    def numpy(self) -> Reals:
        return self[0 : self.shape[0]]


def fresh_noise(correlation: object, rounds: int) -> Reals:
    """Return C, with which released noise is as if it were drawn round by round."""
    unit: dict[int, Reals] = {}
    rows = []
    for number in range(1, rounds + 1):
        step = correlation.step(number)  # type: ignore[attr-defined]
        row = step.fresh * np.eye(rounds)[number - 1]
        unit[number] = row + sum(factor * unit[each] for each, factor in step.made_of)
        rows.append(unit[number] + sum(factor * unit[each] for each, factor in step.beside))
    return np.linalg.inv(np.array(rows))


def _local(plan: PrivacyPlan, trials: int) -> tuple[Reals, Reals]:
    clip, params = plan.clipping.clip_norm, {"w": np.zeros(1)}

    def released(value: float) -> float:
        sent = {"w": MemoryTensor(np.array([value]))}
        noisy = noisy_update(params, sent, plan.clipping, plan.noise_terms, plan.entropy)
        return float(noisy["w"].numpy()[0]) / clip

    there = np.array([released(10 * clip) for _ in range(trials)])
    return there, np.array([released(0.0) for _ in range(trials)])


def _distributed(plan: PrivacyPlan, trials: int) -> tuple[Reals, Reals]:
    clip = plan.clipping.clip_norm
    encoding = NoisyEncoding(
        length=2 * SUM_CLIENTS,
        bits=32,
        clip_norm=clip,
        noise_multiplier=plan.noise_multiplier,
        clients=SUM_CLIENTS,
        noisy=SUM_CLIENTS,
        seed=b"audit",
        law=plan.noise_terms.law,
    )
    there, gone = [], []
    for _ in range(-(-trials // SUM_CLIENTS)):
        total = np.zeros(encoding.numbers, np.uint32)
        for canary in range(SUM_CLIENTS):
            vector = np.zeros(encoding.length)
            vector[canary] = 10 * clip
            total += encoding.encode(vector, 1, entropy=plan.entropy)
        values = encoding.decode(total)[0] / clip
        there.append(values[:SUM_CLIENTS])
        gone.append(values[SUM_CLIENTS:])
    return np.concatenate(there), np.concatenate(gone)


def _dp_sgd(plan: ExamplePlan, trials: int) -> tuple[Reals, Reals]:
    """Clients with many examples, each with a param of its own; who is gone has a gradient that is not
    finite."""
    terms, there, gone = replace(plan.terms, rate=1.0), [], []
    for _ in range(-(-trials // CLIENT_EXAMPLES)):
        count = 2 * CLIENT_EXAMPLES
        inputs = torch.eye(count) * 1000.0 * terms.clip_norm
        inputs[CLIENT_EXAMPLES:] = math.nan
        task = _linear(count)
        module = build_module(task, 0)
        before = next(module.parameters()).detach().double().reshape(-1).numpy().copy()
        data = inputs, torch.ones(count, 1)
        train_dp_sgd(task, module, data, SETTINGS, terms, client=1, device="cpu")
        after = next(module.parameters()).detach().double().reshape(-1).numpy()
        moved = (before - after) * count / terms.clip_norm
        there.append(moved[:CLIENT_EXAMPLES])
        gone.append(moved[CLIENT_EXAMPLES:])
    return np.concatenate(there), np.concatenate(gone)


def _stacked_dp_sgd(plan: ExamplePlan, trials: int) -> tuple[Reals, Reals]:
    """One client a canary, with one example; who is gone has a gradient that is not finite."""
    terms = replace(plan.terms, rate=1.0)
    inputs = torch.full((2 * trials, 1), 1000.0 * terms.clip_norm)
    inputs[trials:] = math.nan
    task = _linear(1)
    data = CohortData(
        inputs=inputs,
        targets=torch.ones(2 * trials, 1),
        rows=np.arange(2 * trials)[:, None],
        counts=np.ones(2 * trials, np.int64),
        anew=np.zeros(2 * trials, np.bool_),
        is_view=True,
    )
    module = task.model()
    probe = torch.tensor([[1.0], [2.0], [3.0]]), torch.ones(3, 1)
    stacked = StackedModule(task, module, probe, precision="fp32")
    clients = range(1, 2 * trials + 1)
    trained = train_stacked_dp_sgd(task, stacked, data, SETTINGS, terms, clients=clients)
    before = float(next(module.parameters()).detach())
    (after,) = (each.detach().double().reshape(-1) for each in trained.rows.values())
    moved = (before - after.numpy()) / terms.clip_norm
    return moved[:trials], moved[trials:]


def _linear(inputs: int) -> Task:
    """Return a task whose gradient is its input, of one output."""
    return Task(
        model=lambda: torch.nn.Linear(inputs, 1, bias=False),
        loss=lambda outputs, targets: (outputs * targets).sum(dim=1),
        client_data=_nobody,
    )


def _nobody(site: Site) -> ClientData:
    raise ConfigError("an audit has no sites")
