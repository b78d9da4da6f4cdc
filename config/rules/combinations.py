"""Which values and combinations of meadow.toml are refused, and why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ..schema.settings import Settings, refuse
from .builders import build_algorithm, build_rule
from .rounds import rounds_rules
from .selection import selection_rules
from .strategy import beside_rules, strategy_rules

if TYPE_CHECKING:
    from ..sections.model import Config

__all__ = ["check_config"]

Rules = list[tuple[bool, tuple[str, ...], str]]
"""Whether it is broken, the keys that it is about, and what is said of the first of them."""


def check_config(config: Config, given: Settings, where: str) -> None:
    """Refuse what is impossible, naming where it was said.

    Raises:
        ConfigError: a value or a combination of values is impossible.
    """
    _check_values(config, given, where)
    _check_combinations(config, given, where)


def _check_values(config: Config, given: Settings, where: str) -> None:
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", config.app.task):
        what = f'must be module:name, as "task:task", got {config.app.task!r}'
        refuse(_said(given, where, "app.task"), "app.task", what)
    cohort = config.run.cohort
    if isinstance(cohort, float) and cohort > 1:
        refuse(
            _said(given, where, "run.cohort"),
            "run.cohort",
            f"must be a fraction in (0, 1] or a whole number of clients, got {cohort}; "
            f"write {round(cohort)} for that many clients",
        )
    stopping, key = config.run.early_stopping, "run.early_stopping.metric"
    if stopping and not re.fullmatch(r"(train|evaluate|server)\.\S+", stopping.metric):
        refuse(
            _said(given, where, key),
            key,
            "must be train., evaluate. or server. and a metric's name, as "
            f'"evaluate.loss", got {stopping.metric!r}',
        )


def _check_combinations(config: Config, given: Settings, where: str) -> None:
    run, clients, every = config.run, config.simulation.clients, "simulation.clients"
    attacked = config.simulation.adversaries
    rules: Rules = [
        (
            isinstance(run.cohort, int) and run.min_clients > run.cohort,
            ("run.min_clients", "run.cohort"),
            (
                f"= {run.min_clients} is more than run.cohort = {run.cohort}: no round could ever "
                "count; lower min_clients or raise cohort"
            ),
        ),
        (
            run.min_clients > clients,
            ("run.min_clients", every),
            (
                f"= {run.min_clients} is more than {every} = {clients}: no round could ever count; "
                "lower min_clients or raise clients"
            ),
        ),
        (
            isinstance(run.cohort, int) and run.cohort > clients,
            ("run.cohort", every),
            f"= {run.cohort} is more than {every} = {clients}; lower cohort or raise clients",
        ),
        (
            config.compression is not None and attacked is not None,
            ("simulation.adversaries", "compression"),
            "look at updates that compression hides; remove one of the two tables",
        ),
        (
            config.compression is not None and config.simulation.executor == "vectorized",
            ("simulation.executor", "compression"),
            (
                '= "vectorized" trains a whole cohort at once, and nobody compresses anything; '
                'with [compression] it must be "sequential", "processes", "ray" or "auto"'
            ),
        ),
        (
            attacked is not None and attacked.count >= clients,
            ("simulation.adversaries.count", every),
            f"must be less than {every} = {clients}: somebody has to be honest",
        ),
        (
            config.training.warmup_rounds > run.rounds,
            ("training.warmup_rounds", "run.rounds"),
            (
                f"= {config.training.warmup_rounds} is more than run.rounds = {run.rounds}: the "
                "learning rate would never arrive; lower warmup_rounds or raise rounds"
            ),
        ),
        (
            config.evaluation.every == 0
            and run.early_stopping is not None
            and not run.early_stopping.metric.startswith("train."),
            ("run.early_stopping.metric", "evaluation.every"),
            (
                "is never measured with evaluation.every = 0; set evaluation.every to 1, or watch "
                '"train.loss"'
            ),
        ),
    ]

    def refuse_broken(rules: Rules) -> None:
        for broken, keys, what in rules:
            if broken:
                refuse(_said(given, where, *keys), keys[0], what)

    private, secure = config.privacy.differential_privacy, config.privacy.secure_aggregation
    tables = {
        "robust": config.robust is not None,
        "compression": config.compression is not None,
        "simulation.adversaries": attacked is not None,
        "privacy.differential_privacy": private.enabled,
    }
    clip = secure.clip if secure.enabled else None
    refuse_broken([*rules, *strategy_rules(config.strategy, config.training, run)])
    refuse_broken(beside_rules(config.strategy, tables=tables, clip=clip))
    if config.rounds.kind != "synchronous":
        refuse_broken(rounds_rules(config, build_algorithm(config)))
    refuse_broken(selection_rules(config.selection, run, config.simulation))
    if config.robust is not None:
        _check_robust_rule(config, given, where)
    if config.privacy.secure_aggregation.enabled:
        from .secure_aggregation import secure_rules

        refuse_broken(secure_rules(config))
    if config.privacy.differential_privacy.enabled:
        from .privacy import privacy_rules

        refuse_broken(privacy_rules(config))


def _check_robust_rule(config: Config, given: Settings, where: str) -> None:
    """Refuse a rule whose conditions are not met by the smallest round that counts."""
    quorum = config.run.min_clients
    said = [key for key in given if key.startswith("robust")]
    assert config.robust is not None
    try:
        rule = build_rule(config.robust)
        build_algorithm(config)
    except ConfigError as error:
        refuse(_said(given, where, *said), "robust", f"cannot be: {error}")
    secure = config.privacy.secure_aggregation
    needed = rule.clients_min * (secure.group_size or 1 if secure.enabled else 1)
    if quorum < needed:
        refuse(
            _said(given, where, "run.min_clients", *said),
            "run.min_clients",
            f"= {quorum} must be >= {needed} for {rule.name} with robust.byzantine = "
            f"{config.robust.byzantine}; raise min_clients or lower byzantine",
        )


def _said(given: Settings, where: str, *keys: str) -> str:
    """Return where the first of these keys was said, but rather what was laid over a file."""
    said = [given[key] for key in keys if key in given]
    said.sort(key=lambda each: not each.textual)
    return said[0].where if said else where
