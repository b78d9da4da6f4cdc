"""What [strategy] makes, and what it does not go with."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from .run import RunConfig
from .strategy import StrategyConfig
from .training import TrainingConfig

if TYPE_CHECKING:
    from ..strategies.algorithm import Algorithm

__all__ = ["is_clippable", "strategy_algorithm", "strategy_rules"]


def strategy_algorithm(chosen: StrategyConfig, *, seed: int = 0, share: float = 1.0) -> Algorithm:
    """Return the algorithm that a section names, with its arguments.

    `share` is the part of all clients that trains in a round, unless the section says it.
    """
    from ..strategies.catalogue import CATALOGUE

    said = {entry.name: getattr(chosen, entry.name) for entry in fields(chosen)}
    said["seed"] = seed
    if chosen.participation is None:
        said["participation"] = share
    return CATALOGUE[chosen.name].build(said)


def is_clippable(chosen: StrategyConfig) -> bool:
    """Whether what clients send survives the clipping of secure aggregation."""
    from ..strategies.catalogue import CATALOGUE

    return CATALOGUE[chosen.name].clippable


def strategy_rules(
    chosen: StrategyConfig, training: TrainingConfig, run: RunConfig
) -> list[tuple[bool, tuple[str, ...], str]]:
    """Return what is wrong beside [strategy]: whether, which keys, and why."""
    from ..strategies.catalogue import CATALOGUE

    name, entry = chosen.name, CATALOGUE[chosen.name]
    for key, example in entry.example.items():
        if not getattr(chosen, key):
            missing = f'must be said with strategy.name = "{name}"; for example {key} = {example}'
            return [(True, (f"strategy.{key}", "strategy.name"), missing)]
    kinds = strategy_algorithm(chosen).companions
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
    return [
        (
            entry.optimizer != "any" and training.optimizer != "sgd",
            ("training.optimizer", "strategy.name"),
            optimizer,
        ),
        (
            entry.optimizer == "plain sgd" and training.momentum > 0,
            ("training.momentum", "strategy.name"),
            momentum,
        ),
        (
            bool(kinds) and run.update_norm_max is not None,
            ("run.update_norm_max", "strategy.name"),
            norm,
        ),
    ]
