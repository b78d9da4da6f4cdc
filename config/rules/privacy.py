"""[privacy.differential_privacy] as a plan, and what it cannot be combined with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ...privacy.dp.accounting.calibration import within_budget
from ...privacy.dp.correlated.correlation import correlated
from ...privacy.dp.example_plan import ExamplePlan
from ...privacy.dp.mechanisms.adaptive import AdaptiveClip
from ...privacy.dp.mechanisms.clipping import Clipping
from ...privacy.dp.plan import PrivacyPlan
from ...strategies.algorithms.mean import MeanAggregator
from .builders import build_algorithm
from .example_level import build_example_plan, example_rules
from .noise import noise_rules

if TYPE_CHECKING:
    from ..sections.model import Config

__all__ = ["build_privacy", "cohort_of", "privacy_rules"]

COUNT_NOISE_SHARE = 20
"""Without count_noise: one part in so many of the cohort. Source: Andrew et al. (2021)."""
SECTION = "privacy.differential_privacy"
AVERAGES = ("fedavg", "fedprox", "lora")


def build_privacy(config: Config) -> PrivacyPlan | ExamplePlan | None:
    """Return the plan that the configuration asks for, None if it does without.

    Raises:
        ConfigError: no noise keeps the budget, or dp-accounting is needed and missing.
    """
    chosen, run = config.privacy.differential_privacy, config.run
    if not chosen.enabled:
        return None
    if chosen.unit == "record":
        return build_example_plan(config)
    cohort, population = cohort_of(config), _population(config)
    if chosen.epsilon is None and chosen.noise_multiplier is None:
        raise ConfigError(f"{SECTION} needs epsilon or noise_multiplier")
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
        clipping=Clipping(kind=chosen.clipping, norm=chosen.clip),
        adaptive=_adaptive(config) if chosen.clipping == "adaptive" else None,
    )


def privacy_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    """Return what is wrong with the privacy that is asked for: whether, which keys, and why."""
    if config.privacy.differential_privacy.unit == "record":
        return example_rules(config)
    return [
        *_number_rules(config),
        *_turn_rules(config),
        *noise_rules(config),
        *_neighbour_rules(config),
    ]


def _number_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    chosen = config.privacy.differential_privacy
    cohort, population = cohort_of(config), _population(config)
    said = (chosen.epsilon is not None) + (chosen.noise_multiplier is not None)
    return [
        (
            said != 1,
            (f"{SECTION}.epsilon", f"{SECTION}.noise_multiplier", f"{SECTION}.enabled"),
            (
                "or noise_multiplier must be given, and not both: each follows from the other; "
                '"meadow privacy plan" shows how'
            ),
        ),
        (
            chosen.delta * population >= 1,
            (f"{SECTION}.delta", f"{SECTION}.population"),
            (
                f"= {chosen.delta:g} must be less than 1 / {population}, the population: else a "
                "client's data could be shown outright; lower it"
            ),
        ),
        (
            cohort > population,
            (f"{SECTION}.population", "run.cohort"),
            f"= {population} is less than run.cohort = {cohort:g}; raise population",
        ),
    ]


def _turn_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    """Return what breaks the promise that clients take part by turns, as noise presumes."""
    chosen, selection = config.privacy.differential_privacy, config.selection
    apart, times = selection.min_separation, selection.participations_max
    correlated = chosen.correlation != "none"
    poisson = chosen.sampling == "poisson"
    return [
        (
            poisson and (correlated or apart > 1 or times is not None),
            (f"{SECTION}.sampling", "selection.min_separation", "selection.participations_max"),
            (
                '= "poisson" has coins decide alone who takes part; with selection.min_separation, '
                'selection.participations_max or correlated noise it must be "fixed"'
            ),
        ),
        (
            correlated and apart < 2,
            ("selection.min_separation", f"{SECTION}.correlation"),
            (
                f'= {apart} must be at least 2 with {SECTION}.correlation = "{chosen.correlation}": '
                "such noise presumes that clients take part by turns"
            ),
        ),
        (
            chosen.correlation == "banded" and (chosen.bands or 1) > apart,
            (f"{SECTION}.bands", "selection.min_separation"),
            (
                f"= {chosen.bands} is more than selection.min_separation = {apart}: a client would "
                "take part twice within the reach of one round's noise; lower bands"
            ),
        ),
        (
            correlated and chosen.clipping == "adaptive",
            (f"{SECTION}.clipping", f"{SECTION}.correlation"),
            (
                '= "adaptive" changes what noise is in proportion to, and correlated noise takes '
                'earlier noise back; choose "fixed" or "per_layer"'
            ),
        ),
    ]


def _neighbour_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    run, enabled = config.run, f"{SECTION}.enabled"
    stopping = run.early_stopping
    algorithm = build_algorithm(config)
    averages = (
        config.strategy.name in AVERAGES
        and algorithm.linear
        and isinstance(algorithm.aggregator, MeanAggregator)
    )
    return [
        (
            not averages,
            (enabled, "strategy.name"),
            (
                "= true adds noise to sums of the params' changes; what clients of strategy "
                f"{config.strategy.name!r} send is more than that, or must not be added up; choose "
                '"fedavg", "fedprox" or "lora", without [robust]'
            ),
        ),
        (
            config.selection.kind != "uniform",
            (enabled, "selection.kind"),
            (
                "= true needs cohorts drawn without a look at the clients' data; set selection.kind = "
                '"uniform"'
            ),
        ),
        (
            run.update_norm_max is not None,
            (enabled, "run.update_norm_max"),
            f"= true clips every update to {SECTION}.clip; remove run.update_norm_max",
        ),
        (
            stopping is not None and not stopping.metric.startswith("server."),
            (enabled, "run.early_stopping.metric"),
            (
                "= true keeps clients' metrics from leaving them, for they carry no noise; watch a "
                '"server." metric, of the task\'s server_data'
            ),
        ),
        (
            config.compression is not None,
            (enabled, "compression"),
            (
                f"= true bounds an update's norm by {SECTION}.clip, and compression would change the "
                "update after that; remove [compression]"
            ),
        ),
        (
            config.simulation.adversaries is not None,
            (enabled, "simulation.adversaries"),
            (
                "= true holds if clients clip what they send, and adversaries do not; remove "
                "simulation.adversaries"
            ),
        ),
        (
            config.simulation.devices is not None,
            (enabled, "simulation.devices"),
            (
                "= true needs cohorts drawn by secret coins, and simulated devices come and go; remove "
                "simulation.devices"
            ),
        ),
    ]


def cohort_of(config: Config) -> float:
    """Return the divisor of a round's sum."""
    cohort = config.run.cohort
    if isinstance(cohort, int):
        return float(max(cohort, config.run.min_clients))
    return max(float(config.run.min_clients), cohort * _population(config))


def _population(config: Config) -> int:
    return config.privacy.differential_privacy.population or config.simulation.clients


def _adaptive(config: Config) -> AdaptiveClip:
    chosen = config.privacy.differential_privacy
    return AdaptiveClip(
        quantile=chosen.target_quantile,
        rate=chosen.clip_learning_rate,
        count_stddev=chosen.count_noise or cohort_of(config) / COUNT_NOISE_SHARE,
    )
