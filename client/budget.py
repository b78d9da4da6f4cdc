"""The owner's budget of privacy: what was spent on this data, and whether a round still fits.

A round costs what its noise says (`privacy.dp.gaussian`), and costs add up over all runs and
servers. The client counts the rounds that it takes part in, and presumes nothing of how it was
drawn: this is never less than what the run accounts for, round by round. Where noise is correlated
between rounds it sees to it that it takes part as rarely as that presumes. It trusts the server to
add the noise that it announced, and the app to clip.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..client_config import PolicyConfig
from ..errors import MeadowError, RefusedError
from ..privacy.dp.clipping import Clipping
from ..privacy.dp.gaussian import cost_of, epsilon_of_cost
from ..privacy.dp.plan import NOISE_KEY, REACH_KEY
from ..transport.entries import unpack_entries
from ..transport.fleet_pb2 import Instruction
from .policy import is_training

__all__ = ["Spending", "announced_noise", "check_budget", "epsilon_spent"]

CONFIG_RECORD = "config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What some rounds cost; infinite if one was without noise."""

    app: str
    run_id: str
    rounds: int
    cost: float


def announced_noise(instruction: Instruction) -> float | None:
    """Return the noise multiplier that an instruction announces, None if its round has no noise."""
    if not instruction.differential_privacy:
        return None
    said = _said(instruction)
    try:
        clipped = Clipping.of(said) is not None
    except MeadowError:
        return None
    noise = said.get(NOISE_KEY)
    known = clipped and isinstance(noise, float) and 0 < noise < math.inf
    return float(noise) if known else None  # type: ignore[arg-type]


def epsilon_spent(spent: Sequence[Spending], delta: float) -> float:
    """Return the epsilon of all these rounds together."""
    return epsilon_of_cost(math.fsum(each.cost for each in spent), delta)


def check_budget(
    instruction: Instruction,
    policy: PolicyConfig,
    *,
    spent: Sequence[Spending],
    rounds: Collection[int] = (),
) -> None:
    """Return if an instruction stays within the owner's budget; `spent` is without it.

    `rounds` are those of the same run that this client took part in.

    Raises:
        RefusedError: it does not; the text has the numbers.
    """
    budget, delta = policy.epsilon_max, policy.delta
    if budget is None:
        return
    if not is_training(instruction):
        raise RefusedError(
            f"policy.epsilon_max is {budget:g}, and what a "
            f"{instruction.envelope.metadata.message_type[:40]!r} message asks for carries no noise"
        )
    noise = announced_noise(instruction)
    if noise is None:
        raise RefusedError(f"policy.epsilon_max is {budget:g}, and this round adds no noise")
    _check_reach(instruction, rounds)
    count, before = sum(each.rounds for each in spent), epsilon_spent(spent, delta)
    if math.isinf(before):
        raise RefusedError(
            f"policy.epsilon_max is {budget:g}, and this data was trained on without noise before"
        )
    this = Spending(app=instruction.app.name, run_id="", rounds=1, cost=cost_of(noise))
    after = epsilon_spent([*spent, this], delta)
    if after > budget:
        raise RefusedError(
            f"policy.epsilon_max is {budget:g} at delta = {delta:g}: {before:.4g} was spent in "
            f"{count} rounds, and this one, with noise multiplier {noise:.4g}, would make it "
            f"{after:.4g}"
        )


def _check_reach(instruction: Instruction, rounds: Collection[int]) -> None:
    """Return if correlated noise hides this participation beside the earlier ones.

    Raises:
        RefusedError: an earlier one is too near.
    """
    reach, said = _said(instruction).get(REACH_KEY), instruction.envelope.metadata.group_id
    if reach is None:
        return
    if not isinstance(reach, int) or not said.isdecimal():
        raise RefusedError("this round's noise is correlated with that of rounds it does not name")
    near = [each for each in rounds if abs(each - int(said)) < reach]
    if near:
        raise RefusedError(
            f"this is round {said}, its noise is correlated over {reach} rounds, and this data was "
            f"in round {near[-1]}: the two would cost more than their noise says"
        )


def _said(instruction: Instruction) -> Mapping[str, Any]:
    """Return what an instruction's settings say; nothing if they cannot be read."""
    records = [each for each in instruction.envelope.records if each.name == CONFIG_RECORD]
    try:
        return unpack_entries(records[0].configs.entries) if len(records) == 1 else {}
    except MeadowError:
        return {}
