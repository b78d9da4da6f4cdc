"""What differential privacy asks of rounds, beside the algorithm whose aggregates carry noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["PrivateRounds"]


class PrivateRounds(Protocol):
    """Draws cohorts as it is accounted for, and accounts for a release before it is made.

    With one, nothing that clients report beside their params is kept, and they are not asked to
    evaluate: metrics carry no noise.
    """

    @property
    def ahead(self) -> bool:
        """Whether a round is released by its clients: it is accounted for before they are asked."""

    @property
    def by_sampling(self) -> bool:
        """Whether cohorts are drawn by secret coins: then a round counts whoever was drawn, for what
        it takes back was drawn, too."""

    def draw(self, round_number: int, present: Sequence[int]) -> list[int] | None:
        """Return a round's cohort, None if it is drawn as without privacy."""

    def account(self, round_number: int) -> Mapping[str, Any]:
        """Account, durably, for what a round is about to release; return its row's "privacy".

        Raises:
            RunStoppedError: it would exceed the budget.
        """
