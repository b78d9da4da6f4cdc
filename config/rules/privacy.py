"""[privacy.differential_privacy] as a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...machine.process_limits import keep_accountants_quiet
from ...privacy.dp.accounting.calibration import calibrate_noise, within_budget
from ...privacy.dp.correlated.correlation import correlated
from ...privacy.dp.example_level import ExampleTerms
from ...privacy.dp.example_plan import ExamplePlan
from ...privacy.dp.mechanisms.adaptive import AdaptiveClip
from ...privacy.dp.mechanisms.clipping import Clipping
from ...privacy.dp.plan import PrivacyPlan
from ..schema.rules import check_rules, rules_of
from .differential_privacy import SECTION, cohort_of, population_of

if TYPE_CHECKING:
    from ..sections.model import Config

__all__ = ["build_privacy"]

COUNT_NOISE_SHARE = 20
"""Without count_noise_stddev: one part in so many of the cohort. Source: Andrew et al. (2021)."""


def build_privacy(config: Config) -> PrivacyPlan | ExamplePlan | None:
    """Return the plan that the configuration asks for, None if it does without.

    Raises:
        ConfigError: no noise keeps the budget, or dp-accounting is needed and missing.
    """
    chosen, run = config.privacy.differential_privacy, config.run
    if not chosen.enabled:
        return None
    keep_accountants_quiet()
    check_rules(rules_of(type(chosen)), chosen, {}, "settings", prefix=f"{SECTION}.")
    if chosen.unit == "record":
        return _example_plan(config)
    cohort, population = cohort_of(config), population_of(config)
    made = PrivacyPlan(
        noise_multiplier=chosen.noise_multiplier or 1.0,
        delta=chosen.delta,
        rounds=run.rounds,
        cohort=cohort,
        population=population,
        sampling=chosen.sampling,
        noise=chosen.noise,
        separation=config.selection.min_separation,
        participations_max=config.selection.participations_max,
        correlation=correlated(
            chosen.correlation,
            rounds=run.rounds,
            separation=config.selection.min_separation,
            bands=chosen.bands,
        ),
        epsilon_max=chosen.epsilon,
    )
    if chosen.epsilon is not None:
        made = within_budget(made, chosen.epsilon)
    return replace(
        made,
        clipping=Clipping(kind=chosen.clipping, clip_norm=chosen.clip_norm),
        adaptive=_adaptive(config) if chosen.clipping == "adaptive" else None,
    )


def _example_plan(config: Config) -> ExamplePlan:
    """Return the plan that the configuration asks for.

    Raises:
        ConfigError: no noise keeps the budget, or dp-accounting is needed and missing.
    """
    chosen, run, epochs = config.privacy.differential_privacy, config.run, config.training.epochs
    assert chosen.sampling_rate is not None
    noise_multiplier = chosen.noise_multiplier or 0.0
    if chosen.epsilon is not None:
        some = ExampleTerms(clip_norm=1.0, noise_multiplier=1.0, rate=chosen.sampling_rate)
        noise_multiplier = calibrate_noise(
            epsilon=chosen.epsilon,
            delta=chosen.delta,
            rounds=run.rounds * some.steps(epochs),
            probability=chosen.sampling_rate,
        )
    return ExamplePlan(
        terms=ExampleTerms(
            clip_norm=chosen.clip_norm, noise_multiplier=noise_multiplier, rate=chosen.sampling_rate
        ),
        delta=chosen.delta,
        rounds=run.rounds,
        epochs=epochs,
        epsilon_max=chosen.epsilon,
    )


def _adaptive(config: Config) -> AdaptiveClip:
    chosen = config.privacy.differential_privacy
    return AdaptiveClip(
        quantile=chosen.target_quantile,
        rate=chosen.clip_learning_rate,
        count_noise_stddev=chosen.count_noise_stddev or cohort_of(config) / COUNT_NOISE_SHARE,
    )
