"""The owner's budget of privacy: what was spent on this data, and whether a round still fits.

A round costs what its noise says (`privacy.dp.gaussian`), and costs add up over all runs and
servers. The client counts the rounds that it takes part in, and presumes nothing of how it was
drawn: this is never less than what the run accounts for, round by round. It trusts the server to
add the noise that it announced, and the app to clip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..client_config import PolicyConfig
from ..errors import MeadowError, RefusedError
from ..privacy.dp.announced import AnnouncedNoise
from ..privacy.dp.clipping import Clipping
from ..privacy.dp.concentrated import epsilon_of_line
from ..privacy.dp.events import GaussianEvent
from ..privacy.dp.gaussian import epsilon_of_cost
from ..privacy.secure_kinds import is_secure
from ..transport.entries import unpack_entries
from ..transport.fleet_pb2 import Instruction
from .policy import is_training

__all__ = ["Spending", "announced_noise", "check_budget", "epsilon_spent"]

CONFIG_RECORD = "config"
SUMMED = "query.secure_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What some rounds cost; infinite if one was without noise.

    `gaussian` is whether all of them were Gaussian: then a closed form gives their epsilon.
    """

    app: str
    run_id: str
    rounds: int
    cost: float
    gaussian: bool = True


def announced_noise(instruction: Instruction) -> AnnouncedNoise | None:
    """Return the noise that an instruction announces, None if its round has none.

    Noise that clients add within secure sums is none in an instruction without such a sum.
    """
    if not instruction.differential_privacy:
        return None
    records = [each for each in instruction.envelope.records if each.name == CONFIG_RECORD]
    try:
        said = unpack_entries(records[0].configs.entries) if len(records) == 1 else {}
        noise = AnnouncedNoise.of(said) if Clipping.of(said) is not None else None
    except MeadowError:
        return None
    secure = is_secure(instruction.envelope.metadata.message_type)
    if noise is not None and (noise.source == "distributed") != secure:
        return None
    return noise


def epsilon_spent(spent: Sequence[Spending], delta: float) -> float:
    """Return the epsilon of all these rounds together."""
    cost = math.fsum(each.cost for each in spent)
    if all(each.gaussian for each in spent):
        return epsilon_of_cost(cost, delta)
    return epsilon_of_line(cost, delta)


def check_budget(
    instruction: Instruction, policy: PolicyConfig, *, spent: Sequence[Spending]
) -> None:
    """Return if an instruction stays within the owner's budget; `spent` is without it.

    Raises:
        RefusedError: it does not; the text has the numbers.
    """
    budget, delta = policy.epsilon_max, policy.delta
    if budget is None:
        return
    asked_for = instruction.envelope.metadata.message_type
    if not is_training(instruction) and asked_for.startswith(SUMMED):
        return  # of a round that was counted when it began; whether it is allowed is decided there
    if not is_training(instruction):
        raise RefusedError(
            f"policy.epsilon_max is {budget:g}, and what a "
            f"{asked_for[:40]!r} message asks for carries no noise"
        )
    noise = announced_noise(instruction)
    if noise is None:
        raise RefusedError(f"policy.epsilon_max is {budget:g}, and this round adds no noise")
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
            f"{rounds} rounds, and this one, with noise multiplier {noise.multiplier:.4g}, would make it "
            f"{after:.4g}"
        )
