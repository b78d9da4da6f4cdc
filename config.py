"""meadow.toml: what a run is, read and checked once, as frozen dataclasses.

Values come from the defaults, then the file, then the environment (MEADOW_RUN__ROUNDS=5), then
`--set run.rounds=5`, the later over the earlier. Every mistake is a `ConfigError` that names
where it was said, the key, and what would be right. docs/configuration.md lists every key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ConfigError
from .sections.compression import CompressionConfig
from .sections.privacy import DifferentialPrivacyConfig, PrivacyConfig, SecureAggregationConfig
from .sections.robust import RobustConfig
from .sections.run import AppConfig, EarlyStoppingConfig, EvaluationConfig, RunConfig
from .sections.simulation import AdversariesConfig, DevicesConfig, SimulationConfig
from .sections.strategy import StrategyConfig
from .sections.training import TrainingConfig
from .settings import Settings, refuse
from .settings_sources import (
    given_by_environment,
    given_by_overrides,
    given_by_table,
    read_toml,
)
from .settings_text import settings_to_toml
from .settings_values import build
from .simulations.partition import Partition

if TYPE_CHECKING:
    from .compression.terms import CompressionTerms
    from .privacy.secure_terms import SecureTerms
    from .strategies.algorithm import Algorithm
    from .strategies.robust.rules import Rule

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
    "RunConfig",
    "SecureAggregationConfig",
    "SimulationConfig",
    "StrategyConfig",
    "TrainingConfig",
    "build_algorithm",
    "build_compression_terms",
    "build_partition",
    "build_secure_terms",
    "config_to_toml",
    "load_config",
    "make_config",
    "training_record",
]

FILE_NAME = "meadow.toml"
SECURE_CLIENTS_MIN = 3
SECURE_CLIENTS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that meadow.toml says; make one with `load_config` or `make_config`."""

    app: AppConfig = field(default_factory=AppConfig)
    run: RunConfig = field(default_factory=RunConfig)
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
    given: Settings = given_by_table(Config, values, where)
    given |= given_by_environment(Config, environ or {})
    given |= given_by_overrides(Config, overrides)
    config = build(Config, given)
    if "simulation.clients" not in given:
        config = replace(config, simulation=_enough_clients(config))
    _check_values(config, given, where)
    _check_combinations(config, given, where)
    return config


def _enough_clients(config: Config) -> SimulationConfig:
    run, simulation = config.run, config.simulation
    drawn = run.cohort if isinstance(run.cohort, int) else 1
    return replace(simulation, clients=max(simulation.clients, run.min_clients, drawn))


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
    rules = [
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
    for broken, keys, what in rules:
        if broken:
            refuse(_said(given, where, *keys), keys[0], what)
    if config.robust is not None:
        _check_robust_rule(config, given, where)
    if config.privacy.secure_aggregation.enabled:
        _check_secure_sums(config, given, where)


def _check_robust_rule(config: Config, given: Settings, where: str) -> None:
    """Refuse a rule whose conditions are not met by the smallest round that counts."""
    key, quorum = "robust.aggregation", config.run.min_clients
    try:
        assert config.robust is not None
        rule = _build_rule(config.robust)
        build_algorithm(config)
    except ConfigError as error:
        refuse(_said(given, where, key, "robust"), "robust", f"cannot be: {error}")
    if quorum < rule.clients_min:
        refuse(
            _said(given, where, "run.min_clients", key, "robust"),
            "run.min_clients",
            f"= {quorum} must be >= {rule.clients_min} for {rule.name} with robust.byzantine = "
            f"{config.robust.byzantine}; raise min_clients or lower byzantine",
        )


def _check_secure_sums(config: Config, given: Settings, where: str) -> None:
    """Refuse what secure aggregation cannot be combined with."""
    for broken, keys, what in _secure_rules(config):
        if broken:
            refuse(_said(given, where, *keys), keys[0], what)
    try:
        build_secure_terms(config, metrics=()).plan(clients=_drawn(config), length=1)
    except ConfigError as error:
        key = "privacy.secure_aggregation"
        said = _said(given, where, f"{key}.corrupt_fraction", f"{key}.enabled")
        refuse(said, key, f"is not safe: {error}")


def _secure_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    """Return what is wrong beside secure aggregation: whether, which keys, and why."""
    run, simulation, enabled = config.run, config.simulation, "privacy.secure_aggregation.enabled"
    algorithm = build_algorithm(config)
    alone = "= true shows the server nothing but sums of updates, and"
    single = (
        f"{alone} {algorithm.name!r} needs every single one; choose another strategy, remove "
        "[robust], or set enabled to false"
    )
    norms = (
        f"{alone} run.update_norm_max is about single ones; remove it: every value is clipped to "
        "privacy.secure_aggregation.clip by the client"
    )
    few = (
        f"= {run.min_clients} must be >= {SECURE_CLIENTS_MIN} with {enabled} = true: a sum of two "
        "clients tells each the other's update"
    )
    many = (
        f"draws {_drawn(config)} clients, and a secure sum is of at most {SECURE_CLIENTS_MAX}; "
        "lower run.cohort"
    )
    executor = (
        f'= "{simulation.executor}" does not run clients that talk to each other; with secure '
        'aggregation it must be "sequential" or "auto"'
    )
    liars = "are about updates that secure aggregation hides; remove them, or set enabled to false"
    packed = (
        "cannot be added up under masks, and which values a sparse update has tells about the "
        "data; remove it and lower privacy.secure_aggregation.value_bits, or set enabled to false"
    )
    clock = "does not know the messages of secure sums; remove it, or set enabled to false"
    return [
        (not algorithm.linear, (enabled, "strategy.name"), single),
        (run.update_norm_max is not None, (enabled, "run.update_norm_max"), norms),
        (run.min_clients < SECURE_CLIENTS_MIN, ("run.min_clients", enabled), few),
        (_drawn(config) > SECURE_CLIENTS_MAX, ("run.cohort", "simulation.clients", enabled), many),
        (
            simulation.executor not in ("auto", "sequential"),
            ("simulation.executor", enabled),
            executor,
        ),
        (simulation.devices is not None, ("simulation.devices", enabled), clock),
        (simulation.adversaries is not None, ("simulation.adversaries", enabled), liars),
        (config.compression is not None, ("compression", enabled), packed),
    ]


def _drawn(config: Config) -> int:
    """Return how many clients a round of a simulation is of."""
    run, clients = config.run, config.simulation.clients
    drawn = run.cohort if isinstance(run.cohort, int) else round(run.cohort * clients)
    return min(clients, max(drawn, run.min_clients))


def _said(given: Settings, where: str, *keys: str) -> str:
    """Return where the first of these keys was said, but rather what was laid over a file."""
    said = [given[key] for key in keys if key in given]
    said.sort(key=lambda each: not each.textual)
    return said[0].where if said else where


def config_to_toml(config: Config) -> str:
    """Return the resolved meadow.toml: every key that means something, defaults included.

    Guarantees: reading the text gives an equal config.
    """
    return settings_to_toml(config)


def build_algorithm(config: Config) -> Algorithm:
    """Return the algorithm that [strategy] names, with its arguments, and with [robust]'s rule."""
    from .strategies.robust.aggregator import robust

    algorithm = _build_strategy(config)
    if config.robust is None:
        return algorithm
    return robust(algorithm, rule=_build_rule(config.robust))


def _build_rule(chosen: RobustConfig) -> Rule:
    from .strategies.robust.rules import robust_rule

    return robust_rule(
        chosen.aggregation,
        byzantine=chosen.byzantine,
        preaggregation=chosen.preaggregation,
        clip_norm=chosen.clip_norm,
        bucket_size=chosen.bucket_size,
        iterations=chosen.iterations,
        trusted=chosen.trusted,
    )


def _build_strategy(config: Config) -> Algorithm:
    from .strategies.fedavg import fedavg
    from .strategies.fedprox import fedprox

    chosen = config.strategy
    if chosen.name == "fedprox":
        return fedprox(proximal_mu=chosen.proximal_mu)
    return fedavg(
        server_optimizer=chosen.server_optimizer,
        server_learning_rate=chosen.server_learning_rate,
        server_momentum=chosen.server_momentum,
        beta_1=chosen.beta_1,
        beta_2=chosen.beta_2,
        tau=chosen.tau,
    )


def build_secure_terms(config: Config, *, metrics: Sequence[str]) -> SecureTerms:
    """Return the public numbers of a run's secure sums, and which metrics are in them."""
    from .privacy.secure_terms import SecureTerms

    chosen = config.privacy.secure_aggregation
    return SecureTerms(
        corrupt=chosen.corrupt_fraction,
        dropout=chosen.dropout_fraction,
        bits=chosen.bits,
        value_bits=chosen.value_bits,
        clip=chosen.clip,
        weight_max=chosen.weight_max,
        metrics=tuple(sorted(metrics)),
        metrics_max=chosen.metrics_max,
    )


def build_compression_terms(config: Config) -> CompressionTerms | None:
    """Return how [compression] says that messages are compressed; None if it is not there."""
    from .compression.terms import CompressionTerms

    chosen = config.compression
    if chosen is None:
        return None
    return CompressionTerms(
        upload=chosen.upload,
        download=chosen.download,
        fraction=chosen.fraction,
        rank=chosen.rank,
        zstd=chosen.zstd,
        seed=config.run.seed,
    )


def build_partition(config: Config) -> Partition:
    """Return the division of a data set that [simulation] names."""
    chosen = config.simulation
    return Partition(
        kind=chosen.partition,
        alpha=chosen.alpha,
        classes_per_client=chosen.classes_per_client,
        min_samples=chosen.min_samples,
        noise_variance=chosen.noise_variance,
    )


def training_record(config: Config) -> dict[str, int | float | str]:
    """Return the entries of a train instruction's ConfigRecord that [training] decides.

    The strategy adds "server-round" and what its algorithm tells clients ("proximal-mu").
    """
    training = config.training
    return {
        "epochs": training.epochs,
        "batch-size": training.batch_size,
        "optimizer": training.optimizer,
        "learning-rate": training.learning_rate,
        "momentum": training.momentum,
        "weight-decay": training.weight_decay,
        "beta-1": training.beta_1,
        "beta-2": training.beta_2,
        "epsilon": training.epsilon,
        "schedule": training.schedule,
        "schedule-rounds": config.run.rounds,
        "warmup-rounds": training.warmup_rounds,
        "step-rounds": training.step_rounds,
        "decay": training.decay,
        "gradient-clip-norm": training.gradient_clip_norm,
        "accumulation-steps": training.accumulation_steps,
        "precision": training.precision,
        "seed": config.run.seed,
    }
