"""What [strategy] and [robust] make, and what they do not go with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ..schema.rules import Rule
from ..sections.model import Config
from ..sections.own_functions import function_of, references_in
from ..sections.robust import RobustConfig

if TYPE_CHECKING:
    from ...strategies.algorithms.algorithm import Algorithm
    from ...strategies.algorithms.catalogue import Entry
    from ...strategies.robust.rules import AggregationRule

__all__ = [
    "ROBUST_RULES",
    "RULES",
    "build_algorithm",
    "build_rule",
    "entry_of_config",
    "is_clippable",
    "with_stand_in",
]

NAME = "strategy.name"


def build_algorithm(config: Config) -> Algorithm:
    """Return the algorithm that [strategy] names, with its arguments, and with [robust]'s rule.

    Raises:
        ConfigError: an argument is out of its bounds, or it is an app's own and was not loaded.
    """
    from ...strategies.robust.aggregator import robust

    algorithm = _strategy_algorithm(config)
    if config.robust is None:
        return algorithm
    return robust(algorithm, rule=build_rule(config))


def build_rule(config: Config) -> AggregationRule:
    """Return the rule that [robust] names.

    Raises:
        ConfigError: its arguments do not fit, or it is an app's own and was not loaded.
    """
    from ...strategies.robust.rules import robust_rule

    chosen = config.robust or RobustConfig()
    return robust_rule(
        chosen.aggregation,
        weigh=function_of(config, "robust.aggregation"),
        byzantine=chosen.byzantine,
        preaggregation=chosen.preaggregation,
        clip_norm=chosen.clip_norm,
        bucket_size=chosen.bucket_size,
        iterations=chosen.iterations,
        trusted=chosen.trusted,
    )


def _strategy_algorithm(config: Config) -> Algorithm:
    """Return the algorithm without [robust]'s rule."""
    if config.algorithm is not None:
        made: Algorithm = config.algorithm
        return made
    chosen, run = config.strategy, config.run
    if chosen.is_own:
        raise ConfigError(
            f"strategy.name = {chosen.name!r} is an app's own algorithm, and the app's code is not "
            "loaded; simulate or run the app's folder, or give `strategy` what the builder returns"
        )
    options = {entry.name: getattr(chosen, entry.name) for entry in fields(chosen)}
    options["seed"] = run.seed
    if chosen.participation is None:
        share = (
            run.cohort if isinstance(run.cohort, float) else run.cohort / config.simulation.clients
        )
        options["participation"] = min(1.0, share)
    built: Algorithm = entry_of_config(config).build(options)
    return built


def entry_of_config(config: Config) -> Entry:
    """Return what the builder declares of the algorithm."""
    from ...strategies.algorithms.builders import Entry
    from ...strategies.algorithms.catalogue import CATALOGUE

    if config.algorithm is None:
        return CATALOGUE[config.strategy.name]
    recipe = config.algorithm.recipe
    if recipe is None:
        return Entry(builder=lambda: config.algorithm, arguments={})
    found: Entry = recipe.entry
    return found


def is_clippable(config: Config) -> bool:
    """Whether what clients send survives the clipping of secure aggregation."""
    declared = entry_of_config(config).clippable
    return not _strategy_algorithm(config).auxiliary if declared is None else declared


def with_stand_in(config: Config) -> Config:
    """Return the config to be checked before an app's own code is loaded: with an algorithm that goes
    with everything in the place of its own, and functions that nobody calls. Once the algorithm is
    loaded, the config is checked with itself."""
    missing = references_in(config).keys() - config.functions.keys()
    if missing:
        stand_ins = dict.fromkeys(missing, _is_not_loaded)
        config = replace(config, functions={**config.functions, **stand_ins})
    if config.algorithm is not None or not config.strategy.is_own:
        return config
    from ...strategies.algorithms.fedavg import fedavg

    return replace(config, algorithm=fedavg())


def _is_not_loaded(*args: Any, **arguments: Any) -> Any:
    raise AssertionError("a function of the app's own is called before the app is loaded")


def _missing(key: str) -> Rule[Config]:
    """Return the rule about an argument that some algorithm has no default for."""

    def example(config: Config) -> str | None:
        shown = None if config.algorithm else entry_of_config(config).example.get(key)
        return None if shown is None or getattr(config.strategy, key) else f"{key} = {shown}"

    return Rule(
        (f"strategy.{key}", NAME),
        "not empty with the algorithms that have it",
        example,
        'must be said with strategy.name = "{strategy.name}", got none; for example {found}',
    )


def _cannot_be_built(config: Config) -> str | None:
    try:
        _strategy_algorithm(config)
    except ConfigError as error:
        return str(error)
    return None


def _of_model(key: str, is_there: Callable[[Config], bool]) -> Rule[Config]:
    """Return the rule about a table that changes a model's params."""
    return Rule(
        (key, NAME),
        'not with `strategy.name = "analytics"`',
        lambda config: is_there(config) and not _strategy_algorithm(config).of_model,
        'is about a model\'s params, and strategy.name = "{strategy.name}" has none; remove it',
    )


def _sends_more(config: Config) -> str | None:
    if config.run.update_norm_max is None:
        return None
    algorithm = _strategy_algorithm(config)
    if algorithm.of_model and not algorithm.auxiliary:
        return None
    return ", ".join(algorithm.auxiliary or (config.strategy.name,))


def _of_many(config: Config) -> bool:
    run = config.run
    alone = type(run.cohort) is int and run.cohort == run.min_clients == 1
    return entry_of_config(config).single and not alone


def _too_few(config: Config) -> str | None:
    needed = entry_of_config(config).clients_min
    return str(needed) if config.run.min_clients < needed else None


def _clipped_parts(config: Config) -> bool:
    secure = config.privacy.secure_aggregation
    return entry_of_config(config).of_whole and secure.enabled and secure.value_bound < 1


def _cannot_be_robust(config: Config) -> str | None:
    if config.robust is None:
        return None
    try:
        build_algorithm(config)
    except ConfigError as error:
        return str(error)
    return None


def _too_few_honest(config: Config) -> str | None:
    if config.robust is None:
        return None
    secure, rule = config.privacy.secure_aggregation, build_rule(config)
    needed = rule.clients_min * ((secure.group_size or 1) if secure.enabled else 1)
    return f"{needed} for {rule.name}" if config.run.min_clients < needed else None


RULES: tuple[Rule[Config], ...] = (
    _missing("private"),
    _missing("adapters"),
    _missing("columns"),
    Rule(
        ("strategy", NAME),
        "arguments that its algorithm takes, such as columns with a lower bound below the upper one",
        _cannot_be_built,
        "cannot be: {found}",
    ),
    Rule(
        ("training.optimizer", NAME),
        '"sgd" with algorithms that know clients\' steps by their gradients (docs/algorithms.md)',
        lambda config: (
            entry_of_config(config).optimizer in ("sgd", "plain sgd")
            and config.training.optimizer != "sgd"
        ),
        '= "{training.optimizer}" does not go with strategy.name = "{strategy.name}", which knows '
        'the steps of its clients by their gradients; set it to "sgd"',
    ),
    Rule(
        ("training.momentum", NAME),
        "0 with algorithms whose steps are the learning rate times a gradient (docs/algorithms.md)",
        lambda config: (
            entry_of_config(config).optimizer == "plain sgd" and config.training.momentum > 0
        ),
        '= {training.momentum:g} does not go with strategy.name = "{strategy.name}", which takes a '
        "step for the learning rate times a gradient; set it to 0",
    ),
    Rule(
        ("run.update_norm_max", NAME),
        "only with algorithms whose clients send nothing but params",
        _sends_more,
        '= {run.update_norm_max} is about params alone, and strategy.name = "{strategy.name}" sends '
        "{found} too; remove it, or choose another strategy",
    ),
    Rule(
        ("run.cohort", "run.min_clients", NAME),
        "1, as `run.min_clients`, with algorithms whose model goes from client to client",
        _of_many,
        "= {run.cohort} and run.min_clients = {run.min_clients} must both be 1 with strategy.name = "
        '"{strategy.name}": the model goes from one client to the next; selection.kind = "cyclic" '
        "lets them take turns",
    ),
    Rule(
        ("run.min_clients", NAME),
        'at least 3 with `strategy.name = "analytics"`',
        _too_few,
        '= {run.min_clients} must be >= {found} with strategy.name = "{strategy.name}": of two clients '
        "each would see the other's numbers; raise it",
    ),
    _of_model("robust", lambda config: config.robust is not None),
    _of_model("compression", lambda config: config.compression is not None),
    _of_model("simulation.adversaries", lambda config: config.simulation.adversaries is not None),
    _of_model(
        "privacy.differential_privacy", lambda config: config.privacy.differential_privacy.enabled
    ),
    Rule(
        ("privacy.secure_aggregation.value_bound", NAME),
        'at least 1 with `strategy.name = "analytics"`',
        _clipped_parts,
        '= {privacy.secure_aggregation.value_bound} must be >= 1 with strategy.name = "{strategy.name}": clients '
        "send parts of a whole, and clipped ones would be wrong; raise it",
    ),
)

ROBUST_RULES: tuple[Rule[Config], ...] = (
    Rule(
        ("robust", NAME),
        "beside algorithms that take the mean of params; clip and centred_clipping need `clip_norm`, "
        "fltrust needs `trusted` and neither nnm nor bucketing, mda takes up to 16 `byzantine`",
        _cannot_be_robust,
        "cannot be: {found}",
    ),
    Rule(
        ("run.min_clients", "robust"),
        "enough honest clients for [robust], and `group_size` times as many within secure sums",
        _too_few_honest,
        "= {run.min_clients} must be >= {found} with robust.byzantine = {robust.byzantine}; raise "
        "min_clients or lower byzantine",
    ),
)
