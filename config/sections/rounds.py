"""[rounds]: whether clients wait for each other, and what counts if they do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..schema.rules import Rule
from ..schema.settings import setting

__all__ = ["RoundsConfig"]

_ASYNCHRONOUS = {"kind": ("fedbuff", "fedasync")}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsConfig:
    """[rounds]: whether clients wait for each other, and what counts if they do not."""

    kind: Literal["synchronous", "fedbuff", "fedasync"] = setting(
        "synchronous",
        "synchronous: a cohort trains, for `run.deadline_s` at most; who is slower does not count "
        "(semi-synchronous). fedbuff, fedasync: clients train all the time, and nobody waits",
    )
    concurrency: float | int = setting(
        1.0,
        "how many clients train at once: a fraction in (0, 1] of those that are there, or a whole "
        "number of them",
        above=0,
        at_most=10**9,
        only=_ASYNCHRONOUS,
    )
    buffer_size: int = setting(
        10,
        "a round is over with so many updates",
        at_least=1,
        at_most=10**6,
        only={"kind": ("fedbuff",)},
    )
    mixing: float = setting(
        0.6,
        "how far an update without staleness moves the params to the client's",
        above=0,
        at_most=1,
        only={"kind": ("fedasync",)},
    )
    staleness: Literal["polynomial", "hinge", "constant"] = setting(
        "polynomial",
        "what an update counts whose params were s rounds old: (1 + s) ** -exponent; 1 up to some "
        "rounds, then ever less; or always 1",
        only=_ASYNCHRONOUS,
    )
    staleness_exponent: float = setting(
        0.5,
        "the polynomial's exponent",
        at_least=0,
        at_most=100,
        only={**_ASYNCHRONOUS, "staleness": ("polynomial",)},
    )
    hinge_grace: int = setting(
        4,
        "up to so many rounds an update counts in full",
        at_least=0,
        at_most=10**6,
        only={**_ASYNCHRONOUS, "staleness": ("hinge",)},
    )
    hinge_slope: float = setting(
        10.0,
        "then it counts 1 / (slope * (s - grace) + 1)",
        at_least=0,
        at_most=1e6,
        only={**_ASYNCHRONOUS, "staleness": ("hinge",)},
    )
    max_staleness: int | None = setting(
        None,
        "who works on params of more rounds before is told to stop; nobody is if absent",
        at_least=0,
        at_most=10**6,
        only=_ASYNCHRONOUS,
    )

    rules: ClassVar[tuple[Rule[RoundsConfig], ...]] = (
        Rule(
            ("concurrency",),
            "a fraction in (0, 1] or a whole number",
            lambda rounds: isinstance(rounds.concurrency, float) and rounds.concurrency > 1,
            "must be a fraction in (0, 1] or a whole number of clients, got {concurrency}; write "
            "{concurrency:.0f} for that many clients",
        ),
    )
