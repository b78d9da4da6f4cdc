"""[privacy.differential_privacy] as a plan, and what it cannot be combined with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .config_builders import build_algorithm
from .errors import ConfigError
from .privacy.dp.adaptive import AdaptiveClip
from .privacy.dp.calibration import calibrate_noise
from .privacy.dp.clipping import Clipping
from .privacy.dp.plan import PrivacyPlan
from .privacy.dp.record_plan import RecordPlan
from .privacy.dp.sampling import shortfall
from .record_config import build_record_plan, record_rules
from .strategies.mean import MeanAggregator

if TYPE_CHECKING:
    from .config import Config

__all__ = ["build_privacy", "privacy_rules"]

COUNT_NOISE_SHARE = 20
"""Without count_noise: one part in so many of the cohort. Source: Andrew et al. (2021)."""
SHORTFALL_MAX = 0.01
SECTION = "privacy.differential_privacy"
AVERAGES = ("fedavg", "fedprox")


def build_privacy(config: Config) -> PrivacyPlan | RecordPlan | None:
    """Return the plan that the configuration asks for, None if it does without.

    Raises:
        ConfigError: no noise keeps the budget, or dp-accounting is needed and missing.
    """
    chosen, run = config.privacy.differential_privacy, config.run
    if not chosen.enabled:
        return None
    if chosen.unit == "record":
        return build_record_plan(config)
    cohort, population = _cohort(config), _population(config)
    multiplier = chosen.noise_multiplier
    if multiplier is None:
        if chosen.epsilon is None:
            raise ConfigError(f"{SECTION} needs epsilon or noise_multiplier")
        multiplier = calibrate_noise(
            epsilon=chosen.epsilon,
            delta=chosen.delta,
            rounds=run.rounds,
            probability=cohort / population if chosen.sampling == "poisson" else None,
            source=chosen.noise,
        )
    return PrivacyPlan(
        noise_multiplier=multiplier,
        delta=chosen.delta,
        rounds=run.rounds,
        cohort=cohort,
        population=population,
        sampling=chosen.sampling,
        noise=chosen.noise,
        clipping=Clipping(kind=chosen.clipping, norm=chosen.clip),
        adaptive=_adaptive(config) if chosen.clipping == "adaptive" else None,
        epsilon_max=chosen.epsilon,
    )


def privacy_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    """Return what is wrong with the privacy that is asked for: whether, which keys, and why."""
    if config.privacy.differential_privacy.unit == "record":
        return record_rules(config)
    return [*_number_rules(config), *_noise_rules(config), *_neighbour_rules(config)]


def _number_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    chosen, run = config.privacy.differential_privacy, config.run
    cohort, population = _cohort(config), _population(config)
    said = (chosen.epsilon is not None) + (chosen.noise_multiplier is not None)
    missed = 0.0
    if chosen.sampling == "poisson" and cohort <= population:
        missed = run.rounds * shortfall(population, cohort / population, run.min_clients)
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
        (
            missed > SHORTFALL_MAX,
            ("run.min_clients", "run.cohort"),
            (
                f"= {run.min_clients} is too close to a cohort of {cohort:g} that is drawn by coins: "
                f"some round would have fewer with a probability of about {min(1.0, missed):.2g}; "
                f'lower min_clients, raise cohort, or set {SECTION}.sampling = "fixed"'
            ),
        ),
    ]


def _noise_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    chosen, secure = config.privacy.differential_privacy, config.privacy.secure_aggregation.enabled
    noise, key, hidden = chosen.noise, f"{SECTION}.noise", "privacy.secure_aggregation.enabled"
    return [
        (
            noise == "distributed" and not secure,
            (key, hidden),
            (
                '= "distributed" gives each client a share of the noise that is too small alone: it '
                f"needs {hidden} = true"
            ),
        ),
        (
            noise != "distributed" and secure,
            (key, hidden),
            (
                f'= "{noise}" does not go with {hidden} = true, which does not trust the server and '
                'bounds single values; set noise = "distributed"'
            ),
        ),
        (
            noise != "server" and chosen.sampling != "fixed",
            (f"{SECTION}.sampling", key),
            (
                f'= "{chosen.sampling}" amplifies only against those who do not know who takes part, '
                f'and noise = "{noise}" is against a server that does; set sampling = "fixed"'
            ),
        ),
        (
            noise != "server" and chosen.clipping == "adaptive",
            (f"{SECTION}.clipping", key),
            (
                f'= "adaptive" is for noise that the server adds, this is "{noise}"; set clipping = '
                '"fixed"'
            ),
        ),
        (
            noise == "local_laplace" and chosen.clipping != "fixed",
            (f"{SECTION}.clipping", key),
            (
                f'= "{chosen.clipping}" bounds an L2 norm, and noise = "local_laplace" needs an L1 '
                'norm of the whole change; set clipping = "fixed"'
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
                '"fedavg" or "fedprox", without [robust]'
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


def _cohort(config: Config) -> float:
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
        count_stddev=chosen.count_noise or _cohort(config) / COUNT_NOISE_SHARE,
    )
