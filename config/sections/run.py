"""[app], [run] and [evaluation]: the code, its rounds, and how they are judged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ..schema.rules import Rule
from ..schema.settings import setting

__all__ = ["AppConfig", "EarlyStoppingConfig", "EvaluationConfig", "RunConfig"]

SEED_MAX = (1 << 63) - 1
_TASK = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_METRIC = re.compile(r"(train|evaluate|server)\.\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppConfig:
    """[app]: the code."""

    task: str = setting(
        "task:task",
        "where the `Task` is, or a function that makes it, as module:name, in the app's folder",
    )
    options: Mapping[str, Any] = field(default_factory=dict, metadata={"free": True})
    """The free keys: keyword arguments of the function that `task` names."""

    rules: ClassVar[tuple[Rule[AppConfig], ...]] = (
        Rule(
            ("task",),
            "module:name",
            lambda app: not _TASK.fullmatch(app.task),
            'must be module:name, as "task:task", got {task!r}',
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStoppingConfig:
    """[run.early_stopping]: naming this table at all turns it on."""

    metric: str = setting(
        "evaluate.loss", "what is watched: train., evaluate. or server. and a metric's name"
    )
    mode: Literal["min", "max"] = setting("min", "whether less or more is better")
    patience: int = setting(
        5, "stop after this many evaluated rounds without a better value", at_least=1, at_most=10**6
    )

    rules: ClassVar[tuple[Rule[EarlyStoppingConfig], ...]] = (
        Rule(
            ("metric",),
            "begins with train., evaluate. or server.",
            lambda stopping: not _METRIC.fullmatch(stopping.metric),
            'must be train., evaluate. or server. and a metric\'s name, as "evaluate.loss", got '
            "{metric!r}",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """[run]: rounds, and who takes part in them."""

    rounds: int = setting(10, "how many rounds are run", at_least=1, at_most=10**6)
    seed: int = setting(
        0, "decides cohorts, batches and initial params", at_least=0, at_most=SEED_MAX
    )
    cohort: float | int = setting(
        1.0,
        "who trains in a round: a fraction in (0, 1] of the clients, or a whole number of them "
        "(1.0 is everybody, 1 is one client)",
        above=0,
        at_most=10**9,
    )
    min_clients: int = setting(
        2,
        "a round starts when this many clients are there, and counts when this many answered",
        at_least=1,
        at_most=10**9,
    )
    deadline_s: float = setting(
        600.0,
        "a round ends after this time if `run.min_clients` have answered, or if all who have not are "
        "silent: then the run fails",
        above=0,
        at_most=30 * 86400,
    )
    early_stopping: EarlyStoppingConfig | None = None
    update_norm_max: float | None = setting(
        None, "the largest L2 norm of a client's delta", above=0
    )
    update_norm_policy: Literal["reject", "clip"] = setting(
        "reject",
        "what happens to an update beyond it",
        only={"update_norm_max": ()},
    )

    rules: ClassVar[tuple[Rule[RunConfig], ...]] = (
        Rule(
            ("cohort",),
            "a fraction in (0, 1] or a whole number",
            lambda run: isinstance(run.cohort, float) and run.cohort > 1,
            "must be a fraction in (0, 1] or a whole number of clients, got {cohort}; write "
            "{cohort:.0f} for that many clients",
        ),
        Rule(
            ("min_clients", "cohort"),
            "at most `run.cohort`, if that is a number of clients",
            lambda run: isinstance(run.cohort, int) and run.min_clients > run.cohort,
            "= {min_clients} is more than run.cohort = {cohort}: no round could ever count; lower "
            "min_clients or raise cohort",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """[evaluation]: on the clients' test data, and on the server's if the task has any."""

    every: int = setting(1, "rounds between evaluations; 0 is never", at_least=0, at_most=10**6)
    tuning_epochs: int = setting(
        0,
        "clients also train the evaluated params on their own data for so many epochs, and measure "
        "them then, as personal- metrics; nothing of that is kept",
        at_least=0,
        at_most=10**6,
    )
