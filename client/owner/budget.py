"""The owner's privacy budget: what was spent on this data, and whether a round still fits.

A round's cost follows from its noise (`privacy.dp.accounting.gaussian`), and costs add up over all
runs and servers. The client counts the rounds that it takes part in, without amplification by
sampling, so its total is never less than the run's. It trusts the server to add the announced
noise, and the app to clip.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...config.client_config import PolicyConfig
from ...errors import RefusedError
from ...privacy.dp.accounting.concentrated import epsilon_of_line
from ...privacy.dp.accounting.events import GaussianEvent, StepsEvent
from ...privacy.dp.accounting.gaussian import epsilon_of_cost
from ...privacy.dp.noise_terms import NoiseTerms
from ...privacy.dp.private_algorithm import REACH_KEY
from ...privacy.secagg.terms.terms import is_talk
from ...transport.fleet_pb2 import Instruction
from .announcements import announcement_of, charged_noise, charged_steps
from .example_budget import Release, record_epsilon
from .policy import is_training

__all__ = ["Spending", "check_budget", "epsilon_spent", "finite", "round_epsilons"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """The cost of some rounds; infinite if one had no noise.

    `gaussian` is whether all of them were Gaussian; then a closed form gives their epsilon.
    """

    app: str
    run_id: str
    rounds: int
    cost: float
    gaussian: bool = True
    releases: tuple[Release, ...] = ()
    """The same rounds by kind, for example-level privacy."""


def epsilon_spent(spent: Sequence[Spending], delta: float) -> float:
    """Return the epsilon of all these rounds together."""
    cost = math.fsum(each.cost for each in spent)
    if all(each.gaussian for each in spent):
        return epsilon_of_cost(cost, delta)
    return epsilon_of_line(cost, delta)


def round_epsilons(
    noise: NoiseTerms | None, steps: StepsEvent | None, delta: float
) -> tuple[float | None, float | None]:
    """Return the epsilon of one round alone, for the client with all its data and for a single record;
    None for what the round does not hide."""
    if noise is None and steps is None:
        return None, None
    cost = None if noise is None else noise.event.cost
    of_client = None
    if noise is not None:
        gaussian = isinstance(noise.event, GaussianEvent)
        of_client = finite(
            epsilon_of_cost(noise.event.cost, delta)
            if gaussian
            else epsilon_of_line(noise.event.cost, delta)
        )
    return of_client, finite(record_epsilon([Release(rounds=1, cost=cost, steps=steps)], delta))


def finite(epsilon: float) -> float | None:
    """Return an epsilon, None for one that is infinite: nothing is hidden."""
    return epsilon if math.isfinite(epsilon) else None


def check_budget(
    instruction: Instruction,
    policy: PolicyConfig,
    *,
    spent: Sequence[Spending],
    rounds: Collection[int] = (),
) -> None:
    """Check that an instruction stays within the owner's budgets; `spent` does not include it.

    `rounds` are those of the same run that this client took part in.

    Raises:
        RefusedError: it exceeds a budget; the message has the numbers.
    """
    if policy.epsilon_max is not None or policy.record_epsilon_max is not None:
        _check_reach(instruction, rounds)
    if policy.epsilon_max is not None:
        _check_client(instruction, policy, policy.epsilon_max, spent)
    if policy.record_epsilon_max is not None:
        _check_examples(instruction, policy, policy.record_epsilon_max, spent)


def _check_examples(
    instruction: Instruction, policy: PolicyConfig, budget: float, spent: Sequence[Spending]
) -> None:
    """Check that an instruction stays within the budget of each example."""
    delta = policy.delta
    asked_for = instruction.envelope.metadata.message_type
    if not is_training(instruction) and is_talk(asked_for):
        return
    noise, steps = charged_noise(instruction, policy), charged_steps(instruction, policy)
    if not is_training(instruction) or (noise is None and steps is None):
        raise RefusedError(
            f"policy.record_epsilon_max is {budget:g}, and the answer to this {asked_for[:40]!r} "
            "message carries no noise"
        )
    cost = None if noise is None else noise.event.cost
    this = Release(rounds=1, cost=cost, steps=steps)
    before = [release for each in spent for release in each.releases]
    already, after = record_epsilon(before, delta), record_epsilon([*before, this], delta)
    if after > budget:
        rounds = sum(each.rounds for each in before)
        raise RefusedError(
            f"policy.record_epsilon_max is {budget:g} at delta = {delta:g}: {already:.4g} was spent "
            f"in {rounds} rounds, and this one would make it {after:.4g}"
        )


def _check_client(
    instruction: Instruction, policy: PolicyConfig, budget: float, spent: Sequence[Spending]
) -> None:
    """Check that an instruction stays within the budget of the client with all its data."""
    delta = policy.delta
    asked_for = instruction.envelope.metadata.message_type
    if not is_training(instruction) and is_talk(asked_for):
        return  # its round was checked and counted when it began
    if not is_training(instruction):
        raise RefusedError(
            f"policy.epsilon_max is {budget:g}, and the answer to a "
            f"{asked_for[:40]!r} message carries no noise"
        )
    noise = charged_noise(instruction, policy)
    if noise is None:
        hides = "only single examples" if charged_steps(instruction, policy) else "nothing"
        raise RefusedError(
            f"policy.epsilon_max is {budget:g}, and this round adds no noise for a client with all "
            f"its data: it hides {hides}"
        )
    rounds, before = sum(each.rounds for each in spent), epsilon_spent(spent, delta)
    if math.isinf(before):
        raise RefusedError(
            f"policy.epsilon_max is {budget:g}, and this data was trained on without noise before"
        )
    this = Spending(
        app=instruction.app.name,
        run_id="",
        rounds=1,
        cost=noise.event.cost,
        gaussian=isinstance(noise.event, GaussianEvent),
    )
    after = epsilon_spent([*spent, this], delta)
    if after > budget:
        raise RefusedError(
            f"policy.epsilon_max is {budget:g} at delta = {delta:g}: {before:.4g} was spent in "
            f"{rounds} rounds, and this one, with noise multiplier {noise.noise_multiplier:.4g}, would make it "
            f"{after:.4g}"
        )


def _check_reach(instruction: Instruction, rounds: Collection[int]) -> None:
    """Check that this participation is far enough from earlier ones for its correlated noise.

    Raises:
        RefusedError: an earlier participation is too near.
    """
    reach, number = (
        announcement_of(instruction).get(REACH_KEY),
        instruction.envelope.metadata.group_id,
    )
    if reach is None:
        return
    if not isinstance(reach, int) or not number.isdecimal():
        raise RefusedError(
            "this round's noise is correlated, but it does not name its round or reach"
        )
    near = [each for each in rounds if abs(each - int(number)) < reach]
    if near:
        raise RefusedError(
            f"this is round {number}, its noise is correlated over {reach} rounds, and this data was "
            f"in round {near[-1]}: the two would cost more than their noise multiplier accounts for"
        )
