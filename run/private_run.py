"""A run's privacy on the server: it draws cohorts and records each release before it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import RunStoppedError, StoreError
from ..privacy.dp.claim import claim_of
from ..privacy.dp.example_plan import ExamplePlan
from ..privacy.dp.plan import PrivacyPlan
from .population_ledger import RunShare
from .privacy_ledger import RunLedger

__all__ = ["PrivateRun"]


class PrivateRun:
    """Implements `PrivateRounds` with a plan and a ledger; states the privacy claim at the end.

    Guarantees: a release is in the ledger before it is made. A round that is repeated after a
        crash counts as a second release. A round is sampled once: its repetition has the same
        clients, and counts as another release about them.
    """

    def __init__(
        self, plan: PrivacyPlan | ExamplePlan, ledger: RunLedger, share: RunShare | None = None
    ) -> None:
        """Open the ledger of a new or interrupted run; `share` is its entry in the server's ledger.

        Raises:
            ConfigError: the ledger has releases of another mechanism, or all runs of the server
                together would exceed a bound of server.toml.
        """
        self.plan, self._ledger, self._event = plan, ledger, plan.event
        self._share = share
        ledger.require(self._event)
        self._ask(ledger.repeated())

    def _ask(self, repeated: tuple[int, ...]) -> None:
        """Record the planned releases of the run, with repeated rounds, in the server's ledger."""
        if self._share is not None:
            releases = self.plan.rounds + sum(repeated) - len(repeated)
            self._share.ask(self.plan.unit, self.plan.asked(releases, repeated))

    def settle(self) -> None:
        """Record the releases that the finished run made in the server's ledger."""
        if self._share is not None:
            releases = self.plan.asked(self._ledger.count(), self._ledger.repeated())
            self._share.settle(self.plan.unit, releases)

    @property
    def ahead(self) -> bool:
        """Whether clients release a round, with their noise, before the server has replies."""
        return self.plan.released_by_clients

    @property
    def by_sampling(self) -> bool:
        """Whether cohorts are drawn by secret Poisson sampling."""
        return isinstance(self.plan, PrivacyPlan) and self.plan.sampling == "poisson"

    def draw(self, round_number: int, present: Sequence[int]) -> list[int] | None:
        """Return a round's cohort by secret Poisson sampling, None if the plan does not sample.

        A repeated round has the clients of its recorded sample that are present.
        """
        if not self.by_sampling:
            return None
        recorded = self._ledger.drawn(round_number)
        if recorded is not None:
            return sorted(set(recorded) & set(present))
        drawn = self.plan.draw(present)
        if drawn is not None:
            self._ledger.write_draw(round_number, drawn)
        return drawn

    def account(self, round_number: int) -> Mapping[str, Any]:
        """Record a release in the ledger; return the row's "privacy".

        Raises:
            RunStoppedError: the budget is spent; nothing is recorded.
            ConfigError: with this repeated round, all runs of the server together would exceed a
                bound of server.toml; nothing is recorded.
            StoreError: earlier releases are missing in the ledger.
        """
        plan = self.plan
        count = self._ledger.count() + 1
        if count < round_number:
            raise StoreError(
                f"the ledger has {count - 1} releases at round {round_number}: some are missing; "
                "restore privacy.sqlite of the run's folder, or start a new run"
            )
        repeated = self._ledger.repeated(round_number)
        if plan.epsilon_max is not None and (repeated or count > plan.rounds):
            self._require_budget(round_number, count, repeated, plan.epsilon_max)
        if repeated != self._ledger.repeated():
            self._ask(repeated)
        self._ledger.write(round_number, self._event)
        return {
            "epsilon": plan.epsilon_by_then(count, repeated),
            "delta": plan.delta,
            "releases": count,
            "noise_multiplier": plan.noise_multiplier,
        }

    def _require_budget(
        self, round_number: int, count: int, repeated: tuple[int, ...], budget: float
    ) -> None:
        plan = self.plan
        if plan.epsilon_by_then(count, repeated) <= budget:
            return
        epsilon = plan.epsilon(count, repeated)
        if epsilon > budget:
            raise RunStoppedError(
                f"round {round_number} would be release {count} and make epsilon "
                f"{epsilon:.4g}, the budget is {budget:g} at delta = {plan.delta:g}: a round that "
                "was repeated after an interruption counts twice, and more with Poisson sampling"
            )

    def summary(self) -> dict[str, Any]:
        """Return the "privacy" of summary.json: numbers, and the claim in words."""
        plan, count = self.plan, self._ledger.count()
        repeated = self._ledger.repeated()
        return {
            "epsilon": plan.epsilon(count, repeated),
            "delta": plan.delta,
            "releases": count,
            "noise_multiplier": plan.noise_multiplier,
            "unit": plan.unit,
            "relation": plan.relation,
            "sampling": plan.sampling,
            "sampling_probability": plan.probability if plan.sampling == "poisson" else None,
            "min_separation": plan.separation,
            "participations": None if plan.sampling == "poisson" else plan.counted(count, repeated),
            "mechanism": plan.mechanism_name,
            "claim": claim_of(plan, count, repeated),
        }
