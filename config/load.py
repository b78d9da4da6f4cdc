"""meadow.toml: what a run is, read and checked once, as frozen dataclasses.

Values come from the defaults, then the file, then the environment (MEADOW_RUN__ROUNDS=5), then
`--set run.rounds=5`, the later over the earlier. Every mistake is a `ConfigError` that names
where it was said, the key, and what would be right. docs/configuration.md lists every key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .app_options import split_options
from .rules.builders import (
    build_algorithm,
    build_asynchrony,
    build_compression_terms,
    build_partition,
    build_secure_terms,
    evaluation_record,
    training_record,
)
from .rules.combinations import check_config
from .rules.selection import clients_for_turns
from .schema.settings import Settings
from .schema.sources import given_by_environment, given_by_overrides, given_by_table, read_toml
from .schema.text import settings_to_toml
from .schema.values import build
from .sections.compression import CompressionConfig
from .sections.privacy import DifferentialPrivacyConfig, PrivacyConfig, SecureAggregationConfig
from .sections.robust import RobustConfig
from .sections.rounds import RoundsConfig
from .sections.run import AppConfig, EarlyStoppingConfig, EvaluationConfig, RunConfig
from .sections.selection import SelectionConfig
from .sections.simulation import AdversariesConfig, DevicesConfig, SimulationConfig
from .sections.strategy import StrategyConfig
from .sections.training import TrainingConfig

__all__ = [
    "FILE_NAME",
    "AdversariesConfig",
    "AppConfig",
    "CompressionConfig",
    "Config",
    "DevicesConfig",
    "DifferentialPrivacyConfig",
    "EarlyStoppingConfig",
    "EvaluationConfig",
    "PrivacyConfig",
    "RobustConfig",
    "RoundsConfig",
    "RunConfig",
    "SecureAggregationConfig",
    "SelectionConfig",
    "SimulationConfig",
    "StrategyConfig",
    "TrainingConfig",
    "build_algorithm",
    "build_asynchrony",
    "build_compression_terms",
    "build_partition",
    "build_secure_terms",
    "config_to_toml",
    "evaluation_record",
    "load_config",
    "make_config",
    "training_record",
]

FILE_NAME = "meadow.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that meadow.toml says; make one with `load_config` or `make_config`."""

    app: AppConfig = field(default_factory=AppConfig)
    run: RunConfig = field(default_factory=RunConfig)
    rounds: RoundsConfig = field(default_factory=RoundsConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    robust: RobustConfig | None = None
    compression: CompressionConfig | None = None
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    source: Path | None = field(default=None, compare=False)
    """The file it was read from."""


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
    values, overrides, options = split_options(values, overrides, known=("task",), where=where)
    given: Settings = given_by_table(Config, values, where)
    given |= given_by_environment(Config, environ or {})
    given |= given_by_overrides(Config, overrides)
    config = build(Config, given)
    config = replace(config, app=replace(config.app, options=options))
    if "simulation.clients" not in given:
        config = replace(config, simulation=_enough_clients(config))
    check_config(config, given, where)
    return config


def _enough_clients(config: Config) -> SimulationConfig:
    run, simulation = config.run, config.simulation
    drawn = clients_for_turns(config.selection, run)
    return replace(simulation, clients=max(simulation.clients, run.min_clients, drawn))


def config_to_toml(config: Config) -> str:
    """Return the resolved meadow.toml: every key that means something, defaults included.

    Guarantees: reading the text gives an equal config.
    """
    return settings_to_toml(config)
