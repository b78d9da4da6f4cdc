"""A run's privacy on the server: cohorts by the plan, releases in a ledger before they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import RunStoppedError, StoreError
from ..privacy.dp.plan import PrivacyPlan
from ..privacy.dp.record_plan import RecordPlan
from .privacy_ledger import RunLedger

__all__ = ["PrivateRun"]


class PrivateRun:
    """What `PrivateRounds` asks for, over a plan and a ledger; and the claim at the end.

    Guarantees: a release is in the ledger before it is made. A round that is repeated after a
        crash is a second release, and counted as one.
    """

    def __init__(self, plan: PrivacyPlan | RecordPlan, ledger: RunLedger) -> None:
        """Open the books of a run, new or interrupted.

        Raises:
            ConfigError: the ledger has releases of another mechanism.
        """
        self.plan, self._ledger, self._event = plan, ledger, plan.event
        ledger.require(self._event)

    @property
    def ahead(self) -> bool:
        """Whether rounds are released by their clients, and so before the server has replies."""
        return self.plan.released_by_clients

    @property
    def by_coins(self) -> bool:
        """Whether cohorts are drawn by secret coins."""
        return isinstance(self.plan, PrivacyPlan) and self.plan.sampling == "poisson"

    def draw(self, present: Sequence[int]) -> list[int] | None:
        """Return a round's cohort by secret coins, None if the plan does not ask for it."""
        return self.plan.draw(present)

    def account(self, round_number: int) -> Mapping[str, Any]:
        """Write a release into the ledger; returns the row's "privacy".

        Raises:
            RunStoppedError: the budget is spent; nothing is released.
            StoreError: earlier releases are missing in the ledger.
        """
        plan = self.plan
        count = self._ledger.count() + 1
        if count < round_number:
            raise StoreError(
                f"the ledger of releases has {count - 1}, and this is round {round_number}: releases "
                "are missing; restore privacy.sqlite of the run's folder, or start anew"
            )
        repeats = count - max(round_number, self._ledger.rounds())
        more = plan.counted(count, repeats) > plan.counted(plan.rounds)
        if plan.epsilon_max is not None and more:
            epsilon = plan.epsilon(count, repeats)
            if epsilon > plan.epsilon_max:
                raise RunStoppedError(
                    f"round {round_number} would be release {count} and make epsilon "
                    f"{epsilon:.4g}, the budget is {plan.epsilon_max:g} at delta = "
                    f"{plan.delta:g}: rounds that were repeated after an interruption count twice"
                )
        self._ledger.write(round_number, self._event)
        return {
            "epsilon": plan.epsilon_by_then(count, repeats),
            "delta": plan.delta,
            "releases": count,
            "noise_multiplier": plan.noise_multiplier,
        }

    def summary(self) -> dict[str, Any]:
        """Return what summary.json says: numbers, and the claim in words."""
        plan, count = self.plan, self._ledger.count()
        repeats = count - self._ledger.rounds()
        return {
            "epsilon": plan.epsilon(count, repeats),
            "delta": plan.delta,
            "releases": count,
            "noise_multiplier": plan.noise_multiplier,
            "unit": plan.unit,
            "relation": plan.relation,
            "sampling": plan.sampling,
            "sampling_probability": plan.probability if plan.sampling == "poisson" else None,
            "min_separation": plan.separation,
            "participations": None if plan.sampling == "poisson" else plan.counted(count, repeats),
            "mechanism": plan.mechanism_name,
            "claim": plan.claim(count, repeats),
        }
