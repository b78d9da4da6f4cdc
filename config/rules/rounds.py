"""What [rounds] makes, and what asynchronous rounds do not go with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..schema.rules import Rule
from ..sections.model import Config
from .strategy import NAME, build_algorithm

if TYPE_CHECKING:
    from ...strategies.algorithms.asynchrony import Asynchrony

__all__ = ["RULES", "build_asynchrony"]

KEY = "rounds.kind"


def build_asynchrony(config: Config) -> Asynchrony | None:
    """Return what [rounds] says of asynchronous rounds; None if rounds are synchronous."""
    from ...strategies.algorithms.fedasync import fedasync
    from ...strategies.algorithms.fedbuff import fedbuff
    from ...strategies.algorithms.staleness import constant, hinge, polynomial

    chosen = config.rounds
    if chosen.kind == "synchronous":
        return None
    weighting = {
        "polynomial": lambda: polynomial(exponent=chosen.staleness_exponent),
        "hinge": lambda: hinge(slope=chosen.hinge_slope, grace=chosen.hinge_grace),
        "constant": constant,
    }[chosen.staleness]()
    if chosen.kind == "fedbuff":
        return fedbuff(
            buffer_size=chosen.buffer_size,
            concurrency=chosen.concurrency,
            weighting=weighting,
            max_staleness=chosen.max_staleness,
        )
    return fedasync(
        mixing=chosen.mixing,
        concurrency=chosen.concurrency,
        weighting=weighting,
        max_staleness=chosen.max_staleness,
    )


def _is_asynchronous(config: Config) -> bool:
    return config.rounds.kind != "synchronous"


def _carries_more(config: Config) -> bool:
    from ...strategies.algorithms.asynchrony import needs_more_than_params

    return (
        _is_asynchronous(config)
        and config.robust is None
        and needs_more_than_params(build_algorithm(config))
    )


def _more_than_there_are(config: Config) -> bool:
    at_once = config.rounds.concurrency
    return (
        _is_asynchronous(config)
        and isinstance(at_once, int)
        and at_once > config.simulation.clients
    )


def _watches_evaluations(config: Config) -> bool:
    stopping = config.run.early_stopping
    return (
        _is_asynchronous(config)
        and stopping is not None
        and stopping.metric.startswith("evaluate.")
    )


def _of_cohorts(
    keys: tuple[str, ...], is_there: Callable[[Config], bool], refusal: str, remedy: str = ""
) -> Rule[Config]:
    """Return the rule about something that presumes cohorts."""
    return Rule(
        (*keys, KEY),
        f'only with `{KEY} = "synchronous"`',
        lambda config: _is_asynchronous(config) and is_there(config),
        f'{refusal}; {remedy or "remove it"}, or set {KEY} to "synchronous"',
    )


WITH = f'with {KEY} = "{{rounds.kind}}"'
NO_COHORTS = f'and {KEY} = "{{rounds.kind}}" has none'

RULES: tuple[Rule[Config], ...] = (
    Rule(
        (KEY, NAME),
        '"synchronous" with algorithms that send or keep more than params',
        _carries_more,
        '= "{rounds.kind}" carries over params alone, and strategy.name = "{strategy.name}" sends or '
        'keeps more; set name to "fedavg" or "fedprox", or kind to "synchronous"',
    ),
    Rule(
        ("rounds.concurrency", "simulation.clients"),
        "at most `simulation.clients`, if it is a number of clients",
        _more_than_there_are,
        "= {rounds.concurrency} is more than simulation.clients = {simulation.clients}; lower it or "
        "raise clients",
    ),
    _of_cohorts(
        ("run.cohort",),
        lambda config: config.run.cohort != 1.0,
        f"= {{run.cohort}} means nothing {WITH}, which has no cohorts",
        "say how many clients train at once with rounds.concurrency",
    ),
    Rule(
        ("run.early_stopping.metric", KEY),
        f'begins with "server." or "train." if `{KEY}` is not "synchronous"',
        _watches_evaluations,
        f'= "{{run.early_stopping.metric}}" is measured once, at the end, {WITH}: clients are not '
        'asked to wait for it; watch a metric of "server." or "train."',
    ),
    _of_cohorts(
        ("robust",),
        lambda config: config.robust is not None,
        f"counts clients, and {WITH} a fast one may be in a round more than once",
    ),
    _of_cohorts(
        ("selection.kind",),
        lambda config: config.selection.kind != "uniform",
        f'= "{{selection.kind}}" is about cohorts, {NO_COHORTS}',
    ),
    _of_cohorts(
        ("selection.min_separation",),
        lambda config: config.selection.min_separation > 1,
        f"= {{selection.min_separation}} is about cohorts, {NO_COHORTS}",
    ),
    _of_cohorts(
        ("selection.participations_max",),
        lambda config: config.selection.participations_max is not None,
        f"= {{selection.participations_max}} is about cohorts, {NO_COHORTS}",
    ),
    _of_cohorts(
        ("compression",),
        lambda config: config.compression is not None,
        f"is for messages of cohorts, {NO_COHORTS}",
    ),
    _of_cohorts(
        ("simulation.adversaries",),
        lambda config: config.simulation.adversaries is not None,
        f"look at a cohort's updates, {NO_COHORTS}",
    ),
    _of_cohorts(
        ("privacy.secure_aggregation.enabled",),
        lambda config: config.privacy.secure_aggregation.enabled,
        f"= true needs clients that answer together, and {WITH} each answers by itself",
        "set it to false",
    ),
    _of_cohorts(
        ("privacy.differential_privacy.enabled",),
        lambda config: config.privacy.differential_privacy.enabled,
        f"= true accounts for cohorts that are drawn, and {WITH} the fastest clients take part",
        "set it to false",
    ),
)
