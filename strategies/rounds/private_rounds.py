"""What differential privacy does in a round, beside adding noise to the aggregate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["PrivateRounds"]


class PrivateRounds(Protocol):
    """Draws cohorts as the accounting assumes, and accounts for each release before it is made.

    Metrics carry no noise: those that clients report are discarded, and clients do not evaluate.
    """

    @property
    def ahead(self) -> bool:
        """Whether clients make the release: then it is accounted for before instructions are sent."""

    @property
    def by_sampling(self) -> bool:
        """Whether cohorts are drawn by secret Poisson sampling: then a round is
        valid for any cohort that was drawn, also for an empty one."""

    def draw(self, round_number: int, present: Sequence[int]) -> list[int] | None:
        """Return a round's cohort, None if it is drawn as in a run without privacy."""

    def account(self, round_number: int) -> Mapping[str, Any]:
        """Account, durably, for what a round is about to release; return its row's "privacy".

        Raises:
            RunStoppedError: it would exceed the budget.
        """
