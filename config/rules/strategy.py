"""What [strategy] makes, and what it does not go with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from ..sections.run import RunConfig
from ..sections.strategy import StrategyConfig
from ..sections.training import TrainingConfig

if TYPE_CHECKING:
    from ...strategies.algorithms.algorithm import Algorithm

__all__ = ["beside_rules", "is_clippable", "strategy_algorithm", "strategy_rules"]


def strategy_algorithm(chosen: StrategyConfig, *, seed: int = 0, share: float = 1.0) -> Algorithm:
    """Return the algorithm that a section names, with its arguments.

    `share` is the part of all clients that trains in a round, unless the section says it.
    """
    from ...strategies.algorithms.catalogue import CATALOGUE

    said = {entry.name: getattr(chosen, entry.name) for entry in fields(chosen)}
    said["seed"] = seed
    if chosen.participation is None:
        said["participation"] = share
    return CATALOGUE[chosen.name].build(said)


def is_clippable(chosen: StrategyConfig) -> bool:
    """Whether what clients send survives the clipping of secure aggregation."""
    from ...strategies.algorithms.catalogue import CATALOGUE

    return CATALOGUE[chosen.name].clippable


def strategy_rules(
    chosen: StrategyConfig, training: TrainingConfig, run: RunConfig
) -> list[tuple[bool, tuple[str, ...], str]]:
    """Return what is wrong beside [strategy]: whether, which keys, and why."""
    from ...strategies.algorithms.analytics import GROUP_MIN
    from ...strategies.algorithms.catalogue import CATALOGUE

    name, entry = chosen.name, CATALOGUE[chosen.name]
    for key, example in entry.example.items():
        if not getattr(chosen, key):
            missing = f'must be said with strategy.name = "{name}"; for example {key} = {example}'
            return [(True, (f"strategy.{key}", "strategy.name"), missing)]
    algorithm = strategy_algorithm(chosen)
    kinds = algorithm.auxiliary or (name,)
    optimizer = (
        f'= "{training.optimizer}" does not go with strategy.name = "{name}", which knows the steps '
        'of its clients by their gradients; set it to "sgd"'
    )
    momentum = (
        f'= {training.momentum:g} does not go with strategy.name = "{name}", which takes a step for '
        "the learning rate times a gradient; set it to 0"
    )
    norm = (
        f'= {run.update_norm_max} is about params alone, and strategy.name = "{name}" sends '
        f"{', '.join(kinds)} too; remove it, or choose another strategy"
    )
    turns = (
        f'and run.min_clients must both be 1 with strategy.name = "{name}": the model goes from one '
        'client to the next; selection.kind = "cyclic" lets them take turns'
    )
    group = (
        f'= {run.min_clients} must be >= {GROUP_MIN} with strategy.name = "analytics": of two '
        "clients each would see the other's numbers"
    )
    return [
        (
            entry.optimizer in ("sgd", "plain sgd") and training.optimizer != "sgd",
            ("training.optimizer", "strategy.name"),
            optimizer,
        ),
        (
            entry.optimizer == "plain sgd" and training.momentum > 0,
            ("training.momentum", "strategy.name"),
            momentum,
        ),
        (
            (bool(algorithm.auxiliary) or not algorithm.of_model)
            and run.update_norm_max is not None,
            ("run.update_norm_max", "strategy.name"),
            norm,
        ),
        (
            entry.single and (type(run.cohort) is float or run.cohort != 1 or run.min_clients != 1),
            ("run.cohort", "run.min_clients", "strategy.name"),
            turns,
        ),
        (
            name == "analytics" and run.min_clients < GROUP_MIN,
            ("run.min_clients", "strategy.name"),
            group,
        ),
    ]


def beside_rules(
    chosen: StrategyConfig, *, tables: Mapping[str, bool], clip: float | None
) -> list[tuple[bool, tuple[str, ...], str]]:
    """Return what is wrong in other sections beside [strategy].

    `tables` are those that change what clients send, and whether each is there; `clip` is what
    secure sums clip to, None without them.
    """
    name, alone = chosen.name, not strategy_algorithm(chosen).of_model
    what = f'is about a model\'s params, and strategy.name = "{name}" has none; remove it'
    rules = [(alone and there, (key, "strategy.name"), what) for key, there in tables.items()]
    low = (
        f'= {clip} must be >= 1 with strategy.name = "analytics": clients send parts of a whole, '
        "and clipped ones would be wrong"
    )
    key = "privacy.secure_aggregation.clip"
    wrong = name == "analytics" and clip is not None and clip < 1
    return [*rules, (wrong, (key, "strategy.name"), low)]
