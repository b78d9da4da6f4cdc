"""[privacy.differential_privacy]: what it needs of other sections, and what it excludes there."""

from __future__ import annotations

from collections.abc import Callable

from ...privacy.dp.plan_rules import cohort_rule, delta_rule, reach_rule, turns_rule
from ..schema.rules import Rule
from ..sections.model import Config
from .cohorts import TURNS
from .strategy import NAME, build_algorithm, entry_of_config

__all__ = ["RULES", "cohort_of", "population_of"]

SECTION = "privacy.differential_privacy"
ENABLED, UNIT, NOISE = f"{SECTION}.enabled", f"{SECTION}.unit", f"{SECTION}.noise"
SECURE = "privacy.secure_aggregation.enabled"
METRIC = "run.early_stopping.metric"
EXAMPLES = '= "record" trains clients by DP-SGD, and'


def cohort_of(config: Config) -> float:
    """Return the divisor of a round's sum."""
    cohort = config.run.cohort
    if isinstance(cohort, int):
        return float(max(cohort, config.run.min_clients))
    return max(float(config.run.min_clients), cohort * population_of(config))


def population_of(config: Config) -> int:
    """Return among how many clients cohorts are drawn."""
    return config.privacy.differential_privacy.population or config.simulation.clients


def _client(broken: Callable[[Config], bool | str | None]) -> Callable[[Config], bool | str | None]:
    """Return whether a client's data are hidden as one, and a rule about that is broken."""
    return lambda config: (
        config.privacy.differential_privacy.enabled
        and config.privacy.differential_privacy.unit == "client"
        and broken(config)
    )


def _example(broken: Callable[[Config], bool]) -> Callable[[Config], bool]:
    """Return whether single examples are hidden, and a rule about that is broken."""
    return lambda config: (
        config.privacy.differential_privacy.enabled
        and config.privacy.differential_privacy.unit == "record"
        and broken(config)
    )


def _delta(config: Config) -> str | None:
    return delta_rule(config.privacy.differential_privacy.delta, population_of(config))


def _cohort(config: Config) -> str | None:
    cohort, population = cohort_of(config), population_of(config)
    if cohort_rule(cohort, population) is None:
        return None
    return f"= {population} is less than run.cohort = {cohort:g}; raise population"


def _turns(config: Config) -> str | None:
    chosen, selection = config.privacy.differential_privacy, config.selection
    by_turns = selection.min_separation > 1 or selection.participations_max is not None
    return turns_rule(chosen.sampling, by_turns=by_turns or chosen.correlation != "none")


def _reach(config: Config) -> str | None:
    chosen = config.privacy.differential_privacy
    reach = 1 if chosen.correlation == "none" else chosen.bands or 2
    return reach_rule(config.selection.min_separation, reach, chosen.correlation)


def _within_sums(config: Config) -> bool:
    return config.privacy.differential_privacy.noise.startswith("distributed")


def _more_than_means(config: Config) -> bool:
    from ...strategies.algorithms.mean import MeanAggregator

    algorithm = build_algorithm(config)
    return not (
        "client" in entry_of_config(config).privacy
        and algorithm.linear
        and isinstance(algorithm.aggregator, MeanAggregator)
    )


def _watches_clients(config: Config) -> bool:
    stopping = config.run.early_stopping
    return stopping is not None and not stopping.metric.startswith("server.")


RULES: tuple[Rule[Config], ...] = (
    Rule(
        (f"{SECTION}.delta", f"{SECTION}.population"),
        "less than 1 / `population`",
        _client(_delta),
    ),
    Rule(
        (f"{SECTION}.population", "run.cohort"),
        "at least the cohort",
        _client(_cohort),
    ),
    Rule(
        (f"{SECTION}.sampling", *TURNS),
        '"fixed" where clients take part with min-separation, or noise is correlated',
        _client(_turns),
    ),
    Rule(
        ("selection.min_separation", f"{SECTION}.correlation", f"{SECTION}.bands"),
        "with correlated noise at least 2, and at least `bands`",
        _client(_reach),
    ),
    Rule(
        (NOISE, SECURE),
        f'"distributed" needs `{SECURE} = true`',
        _client(
            lambda config: _within_sums(config) and not config.privacy.secure_aggregation.enabled
        ),
        f'= "{{{NOISE}}}" gives each client a share of the noise that is too small alone: it needs '
        f"{SECURE} = true; set that",
    ),
    Rule(
        (NOISE, SECURE),
        f'"distributed" or "distributed_gaussian" with `{SECURE} = true`',
        _client(
            lambda config: config.privacy.secure_aggregation.enabled and not _within_sums(config)
        ),
        f'= "{{{NOISE}}}" does not go with {SECURE} = true, which does not trust the server and '
        'bounds single values; set noise = "distributed"',
    ),
    Rule(
        (ENABLED, NAME),
        "only fedavg, fedprox, lora, and algorithms of your own that declare it, without [robust]",
        _client(_more_than_means),
        "= true adds noise to sums of the params' changes; what clients of strategy "
        '{strategy.name!r} send is more than that, or must not be added up; choose "fedavg", '
        '"fedprox" or "lora", without [robust], or let your own builder declare '
        'privacy=("client",) if a noisy mean is all it needs',
    ),
    Rule(
        (ENABLED, "selection.kind"),
        'needs `selection.kind = "uniform"`',
        _client(lambda config: config.selection.kind != "uniform"),
        "= true needs cohorts drawn without a look at the clients' data, and selection.kind is "
        '"{selection.kind}"; set selection.kind = "uniform"',
    ),
    Rule(
        (ENABLED, "run.update_norm_max"),
        "not beside `run.update_norm_max`",
        _client(lambda config: config.run.update_norm_max is not None),
        f"= true clips every update to {SECTION}.clip_norm; remove run.update_norm_max",
    ),
    Rule(
        (ENABLED, METRIC),
        'stops early by a "server." metric alone',
        _client(_watches_clients),
        "= true keeps clients' metrics from leaving them, for they carry no noise; watch a "
        '"server." metric, of the task\'s server_data, not "{run.early_stopping.metric}"',
    ),
    Rule(
        (ENABLED, "compression"),
        "not beside [compression]",
        _client(lambda config: config.compression is not None),
        f"= true bounds an update's norm by {SECTION}.clip_norm, and compression would change the update "
        "after that; remove [compression]",
    ),
    Rule(
        (ENABLED, "simulation.adversaries"),
        "not beside [simulation.adversaries]",
        _client(lambda config: config.simulation.adversaries is not None),
        "= true holds if clients clip what they send, and adversaries do not; remove "
        "simulation.adversaries",
    ),
    Rule(
        (ENABLED, "simulation.devices"),
        "not beside [simulation.devices]",
        _client(lambda config: config.simulation.devices is not None),
        "= true needs cohorts drawn by secret coins, and simulated devices come and go; remove "
        "simulation.devices",
    ),
    Rule(
        (UNIT, NAME),
        '"record" goes with fedavg, fedprox, and algorithms of your own that declare it',
        _example(
            lambda config: (
                "record" not in entry_of_config(config).privacy
                or bool(build_algorithm(config).auxiliary)
                or build_algorithm(config).client is not None
            )
        ),
        f"{EXAMPLES} clients of strategy {{strategy.name!r}} use their data for more than its steps; "
        'choose "fedavg" or "fedprox"',
    ),
    Rule(
        (UNIT, "training.optimizer"),
        '"record" goes with Meadow\'s own optimizers, not with those of torch.optim',
        _example(lambda config: config.training.optimizer.startswith("torch.optim:")),
        f'{EXAMPLES} training.optimizer = "{{training.optimizer}}" is a class of torch; choose '
        '"sgd", "adam" or "adamw"',
    ),
    Rule(
        (UNIT, "training.gradient_clip_norm", "training.accumulation_steps"),
        '"record" excludes `training.gradient_clip_norm` and `training.accumulation_steps`',
        _example(
            lambda config: (
                config.training.gradient_clip_norm > 0 or config.training.accumulation_steps > 1
            )
        ),
        f"{EXAMPLES} clips every example's gradient and makes one step of a batch; remove "
        "training.gradient_clip_norm and accumulation_steps",
    ),
    Rule(
        (UNIT, "training.precision"),
        '"record" needs `training.precision = "fp32"`',
        _example(lambda config: config.training.precision != "fp32"),
        f'{EXAMPLES} computes in fp32; set training.precision = "fp32", not "{{training.precision}}"',
    ),
    Rule(
        (UNIT, "selection.kind"),
        '"record" needs `selection.kind = "uniform"`',
        _example(lambda config: config.selection.kind != "uniform"),
        f"{EXAMPLES} no loss or other measure leaves a client, for selection.kind = "
        '"{selection.kind}" to go by; set selection.kind = "uniform"',
    ),
    Rule(
        (UNIT, METRIC),
        '"record" stops early by a "server." metric alone',
        _example(_watches_clients),
        f'{EXAMPLES} no metric leaves a client; watch a "server." metric, not '
        '"{run.early_stopping.metric}"',
    ),
)
