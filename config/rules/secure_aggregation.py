"""[privacy.secure_aggregation]: what it cannot be combined with, and what would not be safe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ConfigError
from .builders import build_algorithm, build_secure_terms
from .strategy import is_clippable

if TYPE_CHECKING:
    from ...privacy.dp.noise_terms import NoiseTerms
    from ..sections.model import Config

__all__ = ["secure_rules", "sum_sizes"]

SECURE_CLIENTS_MIN = 3
NOISE_MIN = 1e-3
SECURE_CLIENTS_MAX = 10_000


def secure_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    """Return what is wrong with the secure sums that are asked for: whether, which keys, and why."""
    return [*_neighbour_rules(config), *_safety_rules(config)]


def _safety_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    key = "privacy.secure_aggregation"
    try:
        terms = build_secure_terms(config, metrics=(), noise=_noise(config))
        for clients in sum_sizes(config):
            terms.plan(clients=clients, length=1)
    except ConfigError as error:
        return [(True, (key, f"{key}.corrupt_fraction", f"{key}.enabled"), f"is not safe: {error}")]
    return []


def _neighbour_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    run, simulation, enabled = config.run, config.simulation, "privacy.secure_aggregation.enabled"
    algorithm = build_algorithm(config)
    alone = "= true shows the server nothing but sums of updates, and"
    groups = config.privacy.secure_aggregation.group_size
    single = (
        f"{alone} {algorithm.name!r} needs every single one; set group_size to let it take sums of "
        "groups for single updates, choose another strategy, remove [robust], or set enabled to "
        "false"
    )
    small = (
        f"= {run.min_clients} must be >= privacy.secure_aggregation.group_size = {groups}: a "
        "smaller cohort is no group"
    )
    chosen = (
        f'{alone} selection.kind = "{config.selection.kind}" is by what single clients report; set '
        'it to "uniform", or enabled to false'
    )
    numbers = (
        f'{alone} clients of strategy.name = "{config.strategy.name}" send numbers that clipping '
        "would change; choose another strategy, or set enabled to false"
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
        (not algorithm.linear and groups is None, (enabled, "strategy.name"), single),
        (
            groups is not None and run.min_clients < groups,
            ("run.min_clients", "privacy.secure_aggregation.group_size"),
            small,
        ),
        (config.selection.kind != "uniform", (enabled, "selection.kind"), chosen),
        (not is_clippable(config.strategy), (enabled, "strategy.name"), numbers),
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


def _noise(config: Config) -> NoiseTerms | None:
    """Return the noise that clients add to sums, hardly any where it follows from epsilon: how
    much room it needs depends on the model, and is checked when a run begins."""
    from ...privacy.dp.noise_terms import NoiseTerms

    chosen = config.privacy.differential_privacy
    if not chosen.enabled:
        return None
    multiplier = chosen.noise_multiplier or NOISE_MIN
    noise = NoiseTerms(source=chosen.noise, multiplier=multiplier)
    return noise if noise.is_distributed else None


def sum_sizes(config: Config) -> set[int]:
    """Return how many clients the smallest and the largest group of a cohort have."""
    clients, least = _drawn(config), config.privacy.secure_aggregation.group_size
    count = max(1, clients // least) if least else 1
    return {clients // count, -(-clients // count)}
