"""meadow.toml: what a run is, read and checked once, as frozen dataclasses.

Values come from the defaults, then the file, then the environment (MEADOW_RUN__ROUNDS=5), then
`--set run.rounds=5`, the later over the earlier. Every mistake is a `ConfigError` that names
where it was said, the key, and what would be right. docs/configuration.md lists every key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..strategies.algorithms.builders import BUILT_IN
from .app_options import split_options
from .rules.cohorts import clients_for_separation
from .rules.combinations import check_config
from .schema.settings import Settings
from .schema.sources import (
    given_by_environment,
    given_by_overrides,
    given_by_table,
    read_toml,
)
from .schema.text import settings_to_toml
from .schema.values import build
from .sections.model import Config
from .sections.simulation import SimulationConfig

__all__ = ["FILE_NAME", "config_to_toml", "load_config", "make_config"]

FILE_NAME = "meadow.toml"


def load_config(
    path: Path | str,
    *,
    environ: Mapping[str, str] = os.environ,
    overrides: Sequence[str] = (),
) -> Config:
    """Read meadow.toml, or the one in a folder, under the environment and the overrides.

    Raises:
        ConfigError: anything at all is wrong; the text names where, the key and the remedy.
    """
    file = Path(path)
    if file.is_dir():
        file = file / FILE_NAME
    table = read_toml(file, remedy="an app is a folder with a meadow.toml and its code")
    config = make_config(table, where=str(file), environ=environ, overrides=overrides)
    return replace(config, source=file)


def make_config(
    values: Mapping[str, Any],
    *,
    where: str = "settings",
    environ: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """Return the config of a mapping of sections, as `{"run": {"rounds": 3}}`, checked.

    `where` is what an error calls the mapping; without `environ` no variable is looked at.

    Raises:
        ConfigError: as `load_config`.
    """
    values, overrides, options = split_options(
        values, overrides, section="app", known=("task",), where=where
    )
    own: Mapping[str, Any] = {}
    if _has_own_algorithm(values, environ or {}, overrides):
        values, overrides, own = split_options(
            values, overrides, section="strategy", known=("name",), where=where
        )
    given: Settings = given_by_table(Config, values, where)
    given |= given_by_environment(Config, environ or {})
    given |= given_by_overrides(Config, overrides)
    config = build(Config, given, where)
    config = replace(
        config,
        app=replace(config.app, options=options),
        strategy=replace(config.strategy, options=own),
    )
    if "simulation.clients" not in given:
        config = replace(config, simulation=_enough_clients(config))
    check_config(config, given, where)
    return config


def _has_own_algorithm(
    values: Mapping[str, Any], environ: Mapping[str, str], overrides: Sequence[str]
) -> bool:
    """Whether `strategy.name` is none of Meadow's, by the last source that says it."""
    section = values.get("strategy")
    name = section.get("name") if isinstance(section, Mapping) else None
    name = environ.get("MEADOW_STRATEGY__NAME") or name
    for override in overrides:
        key, _, text = (part.strip() for part in override.partition("="))
        name = text if key == "strategy.name" else name
    return isinstance(name, str) and name not in BUILT_IN


def _enough_clients(config: Config) -> SimulationConfig:
    run, simulation = config.run, config.simulation
    drawn = clients_for_separation(config.selection, run)
    return replace(simulation, clients=max(simulation.clients, run.min_clients, drawn))


def config_to_toml(config: Config) -> str:
    """Return the resolved meadow.toml: every key that means something, defaults included.

    Guarantees: reading the text gives an equal config.
    """
    return settings_to_toml(config)
