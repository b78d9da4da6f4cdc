"""[selection]: whom a round is drawn from."""

from __future__ import annotations

from dataclasses import dataclass

from ...strategies.algorithms.builders import REFERENCE
from ..schema.installed import SELECTIONS
from ..schema.settings import setting

__all__ = ["SelectionConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionConfig:
    """[selection]: how a cohort is drawn among the clients that are there."""

    kind: str = setting(
        "uniform",
        "everybody alike; by the number of examples; the largest losses among some candidates; by "
        "Oort's utility, of examples and loss (these three go by what clients reported); of those "
        "that are there, who was drawn for the fewest rounds; or one after another, by number. "
        '"module:function", or a name that an installed package registers, is one of your own: '
        "docs/own-algorithms.md",
        choices=("uniform", "examples", "power_of_choice", "utility", "least_often", "cyclic"),
        or_like=("module:function", REFERENCE),
        installed=SELECTIONS,
    )
    tags: tuple[str, ...] = setting(
        (),
        "only clients that have all of these take part; `meadow site tag` gives them to sites, and "
        "`simulation.tags` to simulated clients",
    )
    candidates: float = setting(
        2.0,
        "how many clients are looked at, for each one that is drawn",
        at_least=1,
        only={"kind": ("power_of_choice",)},
    )
    exploration: float = setting(
        0.1,
        "the part of a cohort that is drawn among clients that never trained",
        at_least=0,
        at_most=1,
        only={"kind": ("utility",)},
    )
    min_separation: int = setting(
        1,
        "a client that was drawn may be drawn again so many rounds later, not before",
        at_least=1,
        at_most=10**6,
    )
    participations_max: int | None = setting(
        None, "so often a client is drawn in the run at most", at_least=1, at_most=10**6
    )

    @property
    def is_own(self) -> bool:
        """Whether `kind` is a function of an app or of an installed package."""
        return ":" in self.kind
