"""Settings given as Python arguments, as the sections of meadow.toml."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from ..config.load import make_config
from ..config.own_algorithm import is_plain
from ..config.schema.text import value_to_toml
from ..config.sections.model import Config
from ..errors import ConfigError
from ..strategies.algorithms.algorithm import Algorithm
from ..strategies.algorithms.asynchrony import Asynchrony
from ..strategies.algorithms.builders import BUILT_IN, Entry, entry_of, recipe_of
from ..strategies.algorithms.catalogue import CATALOGUE

__all__ = ["Tables", "config_of", "overrides_of", "tables_of"]

Tables = dict[str, Any]
"""Dotted key -> value, as {"run.rounds": 3}."""
WHERE = "simulate()"


def tables_of(
    shortcuts: Mapping[str, Any],
    strategy: str | Mapping[str, Any] | Algorithm | Asynchrony | None,
    sections: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> tuple[Tables, Algorithm | None]:
    """Return every setting by its dotted key, and an algorithm that only Python can express.

    `shortcuts` are dotted keys that have arguments of their own, `sections` tables or section
    objects by name, `settings` dotted keys; values that are None count as not given.

    Raises:
        ConfigError: a setting is given twice with different values, or has no key.
    """
    algorithm, chosen = _strategy(strategy)
    found: Tables = {}
    for source in (
        shortcuts,
        chosen,
        dict(entry for name, table in sections.items() for entry in _flat(name, table)),
        dict(entry for key, value in settings.items() for entry in _flat(key, value)),
    ):
        for key, value in source.items():
            if value is None:
                continue
            if key in found and found[key] != value:
                raise ConfigError(
                    f"{WHERE}: {key} is given twice, as {found[key]!r} and as {value!r}; "
                    "remove one of them"
                )
            found[key] = value
    return found, algorithm


def config_of(tables: Tables) -> Config:
    """Return the checked configuration of dotted keys.

    Raises:
        ConfigError: as `make_config`.
    """
    nested: dict[str, Any] = {}
    for key, value in tables.items():
        *names, last = key.split(".")
        table = nested
        for name in names:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{WHERE}: {key} is below a setting that has a value")
        if isinstance(table.get(last), dict) and not isinstance(value, Mapping):
            raise ConfigError(f"{WHERE}: {key} must be a table, got {value!r:.100}")
        table[last] = list(value) if isinstance(value, tuple) else value
    return make_config(nested, where=WHERE)


def overrides_of(tables: Tables) -> list[str]:
    """Return dotted keys as overrides of an app folder's meadow.toml ("run.rounds=3")."""
    free = tables.get("strategy.name", "fedavg") not in BUILT_IN
    return [f"{key}={_said(value, free and _is_argument(key))}" for key, value in tables.items()]


def _is_argument(key: str) -> bool:
    return key.startswith("strategy.") and key != "strategy.name"


def _said(value: Any, free: bool) -> str:
    """Return a value as `--set` takes it; text of a free key is quoted, lest it be read as TOML."""
    return value if isinstance(value, str) and not free else value_to_toml(value)


def _strategy(
    strategy: str | Mapping[str, Any] | Algorithm | Asynchrony | None,
) -> tuple[Algorithm | None, Tables]:
    if strategy is None:
        return None, {}
    if isinstance(strategy, str):
        return None, {"strategy.name": strategy}
    if isinstance(strategy, Mapping):
        return None, dict(_flat("strategy", strategy))
    if isinstance(strategy, Asynchrony):
        return None, _asynchronous(strategy)
    if not isinstance(strategy, Algorithm):
        raise ConfigError(
            f'{WHERE}: strategy must be a name as "fedavg", a table of [strategy], or what a '
            f"builder as meadow.fedavg() returns, got {type(strategy).__name__}"
        )
    recipe = recipe_of(strategy)
    if recipe is None or (name := _name_of(recipe.entry)) is None:
        return strategy, {}
    keys, arguments = recipe.entry.arguments, recipe.arguments
    if arguments.keys() - keys.keys() or not all(is_plain(value) for value in arguments.values()):
        return strategy, {}
    return None, {
        "strategy.name": name,
        **{f"strategy.{keys[name]}": value for name, value in arguments.items()},
    }


def _name_of(entry: Entry) -> str | None:
    """Return how [strategy] names a builder; None of one that only this process knows."""
    name = entry.builder.__name__
    if name in CATALOGUE and CATALOGUE[name] is entry:
        return name
    module = entry.builder.__module__
    found = entry_of(getattr(sys.modules.get(module), name, None))
    return entry.reference if found is entry and module != "__main__" else None


def _asynchronous(rounds: Asynchrony) -> Tables:
    recipe = recipe_of(rounds)
    if recipe is None or "weighting" in recipe.arguments:
        raise ConfigError(
            f"{WHERE}: a weighting of one's own cannot be kept in a run folder; choose one by "
            'asynchronous={"staleness": "hinge", ...}'
        )
    given = {f"rounds.{name}": value for name, value in recipe.arguments.items()}
    return {"rounds.kind": recipe.name, **given}


def _flat(name: str, table: Any) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a table; of a section object those that are not at their default."""
    if is_dataclass(table) and not isinstance(table, type):
        for entry in fields(table):
            value = getattr(table, entry.name)
            if value != _default(entry):
                yield from _flat(f"{name}.{entry.name}", value)
    elif isinstance(table, Mapping):
        for key, value in table.items():
            yield from _flat(f"{name}.{key}", value)
    else:
        yield name, table


def _default(entry: Field[Any]) -> Any:
    if entry.default_factory is not MISSING:
        return entry.default_factory()
    return entry.default
