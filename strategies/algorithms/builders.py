"""Builders of algorithms: functions of keyword hyperparameters whose results say how they were made.

So `strategy=meadow.fedprox(proximal_mu=0.1)` in Python is the same run as `[strategy]` in
meadow.toml, with the same checks and the same text in the run folder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ParamSpec, Protocol, TypeVar

__all__ = ["Recipe", "builder", "recipe_of"]

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an algorithm was made: its builder's name, and the arguments that were given."""

    name: str
    arguments: Mapping[str, Any]
    made: Any
    """The builder's result, to see whether anything was replaced in it since."""


class _Made(Protocol):
    @property
    def recipe(self) -> Recipe | None: ...


M = TypeVar("M", bound=_Made)


def builder(function: Callable[P, M]) -> Callable[P, M]:
    """Let the results of a keyword-only function carry their `Recipe`."""

    @functools.wraps(function)
    def build(*args: P.args, **arguments: P.kwargs) -> M:
        made = function(*args, **arguments)
        given = {name: value for name, value in arguments.items() if value is not None}
        recipe = Recipe(function.__name__, given, made)
        return replace(made, recipe=recipe)  # type: ignore[type-var]

    return build


def recipe_of(made: _Made) -> Recipe | None:
    """Return how an algorithm was made; None if something else than its builder decided a part.

    Guarantees: with a recipe, its builder and arguments give the same algorithm again.
    """
    recipe = made.recipe
    if recipe is None:
        return None
    names = (each.name for each in fields(recipe.made) if each.name != "recipe")
    alike = all(getattr(made, name) is getattr(recipe.made, name) for name in names)
    return recipe if alike else None
