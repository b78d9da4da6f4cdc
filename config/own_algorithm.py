"""An algorithm of one's own: its builder's keyword arguments as the keys of [strategy].

[strategy]
name = "moon:moon"        # def moon(*, mu: Annotated[float, Bounds(at_least=0)] = 1.0)
mu = 0.5
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from ..errors import AppError, ConfigError, ProtocolError
from ..strategies.algorithms.algorithm import Algorithm
from ..strategies.algorithms.bounds import Bounds
from ..strategies.algorithms.builders import Entry, entry_of, hints_of_builder, recipe_of
from .app_options import options_from_text, options_to_text
from .rules.combinations import check_config
from .rules.strategy import entry_of_config
from .schema.settings import Given, KeyRule, refuse
from .schema.values import convert
from .sections.model import Config
from .sections.strategy import StrategyConfig

__all__ = ["OwnAlgorithm", "is_plain", "of_this_process", "with_algorithm_named"]

NAME_KEY, ARGUMENTS_KEY = "algorithm", "algorithm-arguments"
"""Of a train instruction: which client's half is asked for, and its builder's arguments as JSON."""
OURS = entry_of.__module__.rpartition(".")[0]
"""The package that Meadow's own builders are in."""
HERE = "this:process"
"""The name of an algorithm that was made in Python."""
PLAIN = (bool, int, float, str)


@dataclass(frozen=True, slots=True)
class OwnAlgorithm:
    """The builder that an app's `strategy.name` names, in this process's copy of the app.

    Attributes:
        reference: the name, "module:function".
        entry: what `@builder` notes of it.
        where: what an error names: the file that says it.
    """

    reference: str
    entry: Entry
    where: str
    _made: dict[str, Algorithm] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, found: object, *, reference: str, where: str) -> OwnAlgorithm:
        """Return what `strategy.name` names.

        Raises:
            AppError: it is no builder.
        """
        entry = entry_of(found)
        if entry is None:
            raise AppError(
                f"{where}: strategy.name = {reference!r} is a {type(found).__name__} without "
                "@meadow.builder; put that above the function that returns the Algorithm"
            )
        return cls(reference, entry, where)

    def arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the builder's arguments from the keys of [strategy], defaults included.

        Raises:
            ConfigError: a key is unknown or missing, or has another type, or is out of bounds.
        """
        made = self.entry.builder
        hints = hints_of_builder(made)
        parameters = inspect.signature(made).parameters
        names = {key: name for name, key in self.entry.arguments.items()}
        for key in options.keys() - names.keys():
            close = get_close_matches(key, names, n=1)
            hint = f"did you mean strategy.{close[0]}?" if close else f"it takes {_listed(names)}"
            refuse(self.where, f"strategy.{key}", f"is not a keyword of {self.reference}; {hint}")
        arguments: dict[str, Any] = {}
        for key, name in names.items():
            default = parameters[name].default
            if key in options:
                given = Given(options[key], self.where)
                try:
                    arguments[name] = _converted(f"strategy.{key}", given, hints.get(name))
                except ConfigError as error:
                    raise ConfigError(f"{error}; it is an argument of {self.reference}") from None
            elif default is inspect.Parameter.empty:
                refuse(self.where, f"strategy.{key}", f"is missing: {self.reference} needs it")
            else:
                arguments[name] = default
        return arguments

    def resolved(self, config: Config) -> Config:
        """Return the config with the algorithm, and its arguments with their defaults, checked.

        Raises:
            ConfigError: an argument is wrong, or the algorithm does not go with another section.
            AppError: the builder makes something else.
        """
        arguments = self.arguments(config.strategy.options)
        keys = {self.entry.arguments[name]: value for name, value in arguments.items()}
        options = {
            **{key: value for key, value in keys.items() if is_plain(value)},
            **config.strategy.options,
        }
        text = options_to_text(options, self.where, "strategy")
        algorithm = _with_client_keys(self._of_arguments(arguments), self.reference, text)
        strategy = replace(config.strategy, options=options)
        return _checked(replace(config, strategy=strategy, algorithm=algorithm), self.where)

    def named(self, reference: str, text: str) -> Algorithm:
        """Return the algorithm that a train instruction asks for: only this copy's own builder.

        Raises:
            ProtocolError: another one is named, or its arguments are not what the builder takes.
        """
        if reference != self.reference:
            raise ProtocolError(
                f"algorithm {reference!r} is not that of this copy of the app, {self.reference!r}: "
                "clients execute only what strategy.name in their own meadow.toml names"
            )
        if text not in self._made:
            try:
                made = self._of_arguments(self.arguments(options_from_text(text)))
            except ConfigError as error:
                raise ProtocolError(str(error)) from None
            self._made.clear()
            self._made[text] = made
        return self._made[text]

    def _of_arguments(self, arguments: Mapping[str, Any]) -> Algorithm:
        try:
            made = self.entry.builder(**arguments)
        except ConfigError as error:
            raise ConfigError(f"{self.where}: strategy {self.reference}: {error}") from None
        if not isinstance(made, Algorithm):
            raise AppError(
                f"{self.where}: strategy {self.reference} made a {type(made).__name__}, not a "
                "meadow.Algorithm"
            )
        return made


def of_this_process(config: Config) -> Config:
    """Return the config of an algorithm that was made in Python, checked with it: clients of
    this process use its client half.

    Raises:
        ConfigError: the algorithm cannot be combined with another section.
    """
    algorithm = _with_client_keys(config.algorithm, HERE, "{}")
    recipe = recipe_of(config.algorithm)
    if recipe is not None:  # it is the builder's algorithm still
        algorithm = replace(algorithm, recipe=replace(recipe, made=algorithm))
    return _checked(replace(config, algorithm=algorithm), "strategy")


def with_algorithm_named(config: Config) -> Config:
    """Return the config with an algorithm that was made in Python named under [strategy], for people:
    the builder and its plain arguments, or "python:NAME" where no builder made it as it is."""
    made = config.algorithm
    if made is None or config.strategy.is_own:
        return config
    recipe, name, arguments = recipe_of(made), f"python:{made.name}", {}
    if recipe is not None:
        builder = recipe.entry.builder
        name = f"{builder.__module__}:{builder.__name__}"
        arguments = {key: value for key, value in recipe.arguments.items() if is_plain(value)}
    return replace(config, strategy=StrategyConfig(name=name, options=arguments))


def _checked(config: Config, where: str) -> Config:
    """Return the config after checking it together with its algorithm."""
    check_config(config, {}, where)
    sent = config.algorithm.auxiliary
    own = not _is_meadows(config.algorithm)
    if own and sent and config.compression is not None and not entry_of_config(config).compressible:
        refuse(
            where,
            "compression",
            f"would change the auxiliary tensors {', '.join(sent)} of strategy "
            f"{config.algorithm.name!r}; remove it, or let the builder declare compressible=True",
        )
    return config


def _is_meadows(algorithm: Algorithm) -> bool:
    """Whether one of Meadow's builders made it."""
    entry = None if algorithm.recipe is None else algorithm.recipe.entry
    return entry is not None and entry.builder.__module__.startswith(f"{OURS}.")


def _with_client_keys(algorithm: Algorithm, name: str, arguments: str) -> Algorithm:
    if algorithm.client is None or NAME_KEY in algorithm.client_config:
        return algorithm
    keys = {NAME_KEY: name, ARGUMENTS_KEY: arguments}
    return replace(algorithm, client_config={**algorithm.client_config, **keys})


def _converted(key: str, given: Given, hint: Any) -> Any:
    """Return an argument in the type that its annotation says, if that is one of settings."""
    rule, kind = KeyRule(), hint
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        for bounds in (each for each in notes if isinstance(each, Bounds)):
            rule = KeyRule(**asdict(bounds))
    if get_origin(kind) is Literal:
        return convert(key, given, kind, replace(rule, choices=get_args(kind)))
    members = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    lists = get_origin(kind) is tuple and get_args(kind)[0] in (str, float, int)
    if lists or all(each in PLAIN or each is NoneType for each in members):
        return convert(key, given, kind, rule)
    return given.value


def is_plain(value: Any) -> bool:
    """Whether meadow.toml can hold an argument."""
    if isinstance(value, tuple | list):
        return all(is_plain(each) for each in value)
    return isinstance(value, PLAIN)


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(names) or "none"
