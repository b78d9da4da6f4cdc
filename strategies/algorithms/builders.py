"""Builders of algorithms: functions of keyword hyperparameters whose results say how they were made.

So `strategy=meadow.fedprox(proximal_mu=0.1)` in Python is the same run as `[strategy]` in
meadow.toml, with the same checks and the same text in the run folder. `@builder` is the one way in
for every algorithm: Meadow's own have a short name, in `BUILT_IN`; all others are named as
"module:function".
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, get_type_hints, overload

from .bounds import Bounds

__all__ = [
    "BUILT_IN",
    "REFERENCE",
    "Entry",
    "Recipe",
    "builder",
    "entry_of",
    "hints_of_builder",
    "recipe_of",
]

P = ParamSpec("P")

REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""What names a function of a module, "module:function"."""
BUILT_IN: Mapping[str, str] = {
    "fedavg": "fedavg",
    "fedprox": "fedprox",
    "scaffold": "scaffold",
    "fednova": "fednova",
    "feddyn": "feddyn",
    "qfedavg": "qfedavg",
    "afl": "afl",
    "fedlion": "fedlion",
    "fedper": "fedper",
    "fedrep": "fedrep",
    "fedbn": "fedbn",
    "ditto": "ditto",
    "ifca": "ifca",
    "lora": "lora",
    "newton": "newton",
    "xgb_bagging": "boosted_trees",
    "xgb_cyclic": "boosted_trees",
    "analytics": "analytics",
}
"""Meadow's own algorithms: the short name of each, that of its builder, -> the module beside this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A builder, and what its algorithms need.

    Attributes:
        builder: makes the algorithm.
        arguments: argument of the builder -> key of [strategy].
        example: values for the arguments that have no default.
        client: what a client does beside training, as the rest of a sentence; empty for nothing.
        keeps: what a client keeps from round to round.
        optimizer: which local optimizers it goes with; "none" where clients take no steps of one.
        clippable: whether what clients send survives the clipping of secure aggregation: changes
            of params and the like do, counts do not. None: if they send nothing but params.
        compressible: whether an own algorithm's auxiliary tensors survive lossy compression.
        privacy: the units of differential privacy that it goes with: "client" for algorithms that
            need no more of a round than its noisy mean, "record" where clients do nothing but
            take training steps.
        personal: whether clients have params of their own: they are evaluated too, and trained one
            by one, not in one tensor.
        together: whether a cohort can be trained in one tensor.
        single: whether only one client may be asked in a round.
        clients_min: how many clients a round needs at least.
        of_whole: whether clients send parts of a whole, from 0 to 1.
    """

    builder: Callable[..., Any]
    arguments: Mapping[str, str]
    example: Mapping[str, Any] = field(default_factory=dict)
    client: str = ""
    keeps: str = "nothing"
    optimizer: Literal["any", "sgd", "plain sgd", "none"] = "any"
    clippable: bool | None = None
    compressible: bool = False
    privacy: tuple[str, ...] = ()
    personal: bool = False
    together: bool = True
    single: bool = False
    clients_min: int = 1
    of_whole: bool = False

    @property
    def reference(self) -> str:
        """How [strategy] names the builder: "module:function"."""
        return f"{self.builder.__module__}:{self.builder.__qualname__}"

    def build_example(self) -> Any:
        """Return the algorithm with the arguments of `example`, and defaults for the others."""
        return self.builder(
            **{
                name: self.example[key]
                for name, key in self.arguments.items()
                if key in self.example
            }
        )

    def build(self, said: Mapping[str, Any]) -> Any:
        """Return the algorithm with its arguments from the keys of [strategy].

        Raises:
            ConfigError: an argument is out of its bounds.
        """
        return self.builder(**{name: said[key] for name, key in self.arguments.items()})


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an algorithm was made: by which builder, and from the arguments that were given."""

    entry: Entry
    arguments: Mapping[str, Any]
    made: Any
    """The builder's result, to see whether anything was replaced in it since."""

    @property
    def name(self) -> str:
        """The builder's name."""
        return self.entry.builder.__name__


class _Made(Protocol):
    @property
    def recipe(self) -> Recipe | None: ...


M = TypeVar("M", bound=_Made)


@overload
def builder(function: Callable[P, M], /) -> Callable[P, M]: ...
@overload
def builder(
    *, keys: Mapping[str, str | None] = ..., **declared: Any
) -> Callable[[Callable[P, M]], Callable[P, M]]: ...
def builder(
    function: Callable[..., Any] | None = None,
    /,
    *,
    keys: Mapping[str, str | None] | None = None,
    **declared: Any,
) -> Any:
    """Let a keyword-only function be named by [strategy], and its results carry their `Recipe`.

    `declared` are the attributes of `Entry` that say what its algorithms need. Its arguments are
    the section's keys, under the same names but for those in `keys`; None there is for an argument
    that only Python can give. An argument whose annotation has `Bounds` is checked against them.
    """
    if function is None:
        return functools.partial(_registered, keys=keys or {}, declared=declared)
    return _registered(function, keys={}, declared={})


def _registered(
    function: Callable[P, M], *, keys: Mapping[str, str | None], declared: Mapping[str, Any]
) -> Callable[P, M]:
    names = {
        name: keys.get(name, name)
        for name, each in inspect.signature(function).parameters.items()
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }

    @functools.wraps(function)
    def build(*args: P.args, **arguments: P.kwargs) -> M:
        for name, bounds in _bounds_of(function).items():
            if arguments.get(name) is not None:
                bounds.check(name, arguments[name])
        made = function(*args, **arguments)
        if not hasattr(made, "recipe"):  # it is refused where it is used
            return made
        given = {name: value for name, value in arguments.items() if value is not None}
        return replace(made, recipe=Recipe(entry, given, made))  # type: ignore[type-var]

    known = {name: key for name, key in names.items() if key is not None}
    entry = Entry(builder=build, arguments=known, **declared)
    build.__dict__["entry"] = entry
    return build


def entry_of(function: object) -> Entry | None:
    """Return what `@builder` notes of a function; None of anything else."""
    entry = getattr(function, "__dict__", {}).get("entry")
    return entry if isinstance(entry, Entry) else None


def hints_of_builder(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types of a builder's arguments; none where they are for a type checker alone."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return {}


@functools.cache
def _bounds_of(function: Callable[..., Any]) -> dict[str, Bounds]:
    if not any("Bounds" in str(hint) for hint in inspect.get_annotations(function).values()):
        return {}
    return {
        name: bounds
        for name, hint in hints_of_builder(function).items()
        for bounds in getattr(hint, "__metadata__", ())
        if isinstance(bounds, Bounds)
    }


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
