"""What [rounds] makes, and what asynchronous rounds do not go with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..sections.rounds import RoundsConfig

if TYPE_CHECKING:
    from ...strategies.algorithms.algorithm import Algorithm
    from ...strategies.algorithms.asynchrony import Asynchrony
    from ..sections.model import Config

__all__ = ["asynchrony_of", "rounds_rules"]

KEY = "rounds.kind"


def asynchrony_of(chosen: RoundsConfig) -> Asynchrony | None:
    """Return what a section says of asynchronous rounds; None if rounds are synchronous."""
    from ...strategies.algorithms.fedasync import fedasync
    from ...strategies.algorithms.fedbuff import fedbuff
    from ...strategies.algorithms.staleness import constant, hinge, polynomial

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


def rounds_rules(config: Config, algorithm: Algorithm) -> list[tuple[bool, tuple[str, ...], str]]:
    """Return what is wrong beside asynchronous rounds: whether, which keys, and why."""
    from ...strategies.algorithms.asynchrony import needs_more_than_params

    if config.rounds.kind == "synchronous":
        return []
    return [
        (
            config.robust is None and needs_more_than_params(algorithm),
            (KEY, "strategy.name"),
            (
                f'= "{config.rounds.kind}" carries over params alone, and strategy.name = '
                f'"{config.strategy.name}" sends or keeps more; set name to "fedavg" or "fedprox", '
                'or kind to "synchronous"'
            ),
        ),
        *_number_rules(config),
        *_neighbour_rules(config),
    ]


def _number_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    run, at_once, clients = config.run, config.rounds.concurrency, config.simulation.clients
    stopping = run.early_stopping
    return [
        (
            isinstance(at_once, float) and at_once > 1,
            ("rounds.concurrency",),
            (
                f"must be a fraction in (0, 1] or a whole number of clients, got {at_once}; write "
                f"{round(at_once)} for that many clients"
            ),
        ),
        (
            isinstance(at_once, int) and at_once > clients,
            ("rounds.concurrency", "simulation.clients"),
            f"= {at_once} is more than simulation.clients = {clients}; lower it or raise clients",
        ),
        (
            run.cohort != 1.0,
            ("run.cohort", KEY),
            (
                f'= {run.cohort} means nothing with {KEY} = "{config.rounds.kind}", which has no '
                "cohorts; say how many clients train at once with rounds.concurrency"
            ),
        ),
        (
            stopping is not None and stopping.metric.startswith("evaluate."),
            ("run.early_stopping.metric", KEY),
            (
                f'is measured once, at the end, with {KEY} = "{config.rounds.kind}": clients are '
                'not asked to wait for it; watch a metric of "server." or "train."'
            ),
        ),
    ]


def _neighbour_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    kind = f'{KEY} = "{config.rounds.kind}"'
    synchronous = f'remove it, or set {KEY} to "synchronous"'
    privacy = config.privacy
    return [
        (
            config.robust is not None,
            ("robust", KEY),
            (
                f"counts clients, and with {kind} a fast one may be in a round more than once; "
                f"{synchronous}"
            ),
        ),
        (
            config.selection.kind != "uniform",
            ("selection.kind", KEY),
            f'= "{config.selection.kind}" is about cohorts, and {kind} has none; {synchronous}',
        ),
        (
            config.selection.min_separation > 1,
            ("selection.min_separation", KEY),
            f"is about cohorts, and {kind} has none; {synchronous}",
        ),
        (
            config.selection.participations_max is not None,
            ("selection.participations_max", KEY),
            f"is about cohorts, and {kind} has none; {synchronous}",
        ),
        (
            config.compression is not None,
            ("compression", KEY),
            f"is for messages of cohorts, and {kind} has none; {synchronous}",
        ),
        (
            config.simulation.adversaries is not None,
            ("simulation.adversaries", KEY),
            f"look at a cohort's updates, and {kind} has none; {synchronous}",
        ),
        (
            privacy.secure_aggregation.enabled,
            ("privacy.secure_aggregation.enabled", KEY),
            (
                f"= true needs clients that answer together, and with {kind} each answers by "
                f'itself; set it to false, or {KEY} to "synchronous"'
            ),
        ),
        (
            privacy.differential_privacy.enabled,
            ("privacy.differential_privacy.enabled", KEY),
            (
                f"= true accounts for cohorts that are drawn, and {kind} takes whoever is fast; set "
                f'it to false, or {KEY} to "synchronous"'
            ),
        ),
    ]
