"""[privacy.secure_aggregation]: what it cannot be combined with, and what would not be safe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ..schema.rules import Rule
from ..sections.model import Config
from .builders import build_secure_terms
from .strategy import NAME, build_algorithm, is_clippable

if TYPE_CHECKING:
    from ...privacy.dp.noise_terms import NoiseTerms

__all__ = ["RULES", "sum_sizes"]

SECTION = "privacy.secure_aggregation"
ENABLED = f"{SECTION}.enabled"
ALONE = "= true shows the server nothing but sums of updates, and"
SECURE_CLIENTS_MIN = 3
NOISE_MIN = 1e-3
SECURE_CLIENTS_MAX = 10_000


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
    noise = NoiseTerms(source=chosen.noise, noise_multiplier=multiplier)
    return noise if noise.is_distributed else None


def sum_sizes(config: Config) -> set[int]:
    """Return how many clients the smallest and the largest group of a cohort have."""
    clients, least = _drawn(config), config.privacy.secure_aggregation.group_size
    count = max(1, clients // least) if least else 1
    return {clients // count, -(-clients // count)}


def _is_secure(config: Config) -> bool:
    return config.privacy.secure_aggregation.enabled


def _secure_with(is_there: Callable[[Config], bool]) -> Callable[[Config], bool]:
    """Return whether there are secure sums, and something that they do not go with."""
    return lambda config: _is_secure(config) and is_there(config)


def _single(config: Config) -> str | None:
    if not _is_secure(config) or config.privacy.secure_aggregation.group_size is not None:
        return None
    algorithm = build_algorithm(config)
    return None if algorithm.linear else repr(algorithm.name)


def _too_many(config: Config) -> str | None:
    drawn = _drawn(config)
    return str(drawn) if _is_secure(config) and drawn > SECURE_CLIENTS_MAX else None


def _small_group(config: Config) -> bool:
    group = config.privacy.secure_aggregation.group_size
    return _is_secure(config) and group is not None and config.run.min_clients < group


def _unsafe(config: Config) -> str | None:
    if not _is_secure(config):
        return None
    try:
        terms = build_secure_terms(config, metrics=(), noise=_noise(config))
        for clients in sum_sizes(config):
            terms.plan(clients=clients, length=1)
    except ConfigError as error:
        return str(error)
    return None


RULES: tuple[Rule[Config], ...] = (
    Rule(
        (ENABLED, NAME),
        "only algorithms that are linear in the updates, and without [robust], or with `group_size`",
        _single,
        f"{ALONE} {{found}} needs every single one; set group_size to let it take sums of groups for "
        "single updates, choose another strategy, remove [robust], or set enabled to false",
    ),
    Rule(
        ("run.min_clients", f"{SECTION}.group_size"),
        f"at least `{SECTION}.group_size`",
        _small_group,
        f"= {{run.min_clients}} must be >= {SECTION}.group_size = {{{SECTION}.group_size}}: a smaller "
        "cohort is no group; raise min_clients or lower group_size",
    ),
    Rule(
        (ENABLED, "selection.kind"),
        'needs `selection.kind = "uniform"`',
        _secure_with(lambda config: config.selection.kind != "uniform"),
        f'{ALONE} selection.kind = "{{selection.kind}}" is by what single clients report; set it to '
        '"uniform", or enabled to false',
    ),
    Rule(
        (ENABLED, NAME),
        "only algorithms whose clients send what may be clipped (docs/algorithms.md)",
        _secure_with(lambda config: not is_clippable(config)),
        f'{ALONE} clients of strategy.name = "{{strategy.name}}" send numbers that clipping would '
        "change; choose another strategy, or set enabled to false (your own builder may declare "
        "clippable=True)",
    ),
    Rule(
        (ENABLED, "run.update_norm_max"),
        "not beside `run.update_norm_max`",
        _secure_with(lambda config: config.run.update_norm_max is not None),
        f"{ALONE} run.update_norm_max is about single ones; remove it: every value is clipped to "
        f"{SECTION}.value_bound by the client",
    ),
    Rule(
        ("run.min_clients", ENABLED),
        f"at least {SECURE_CLIENTS_MIN} with secure sums",
        _secure_with(lambda config: config.run.min_clients < SECURE_CLIENTS_MIN),
        f"= {{run.min_clients}} must be >= {SECURE_CLIENTS_MIN} with {ENABLED} = true: a sum of two "
        "clients tells each the other's update; raise it",
    ),
    Rule(
        ("run.cohort", "simulation.clients", ENABLED),
        f"at most {SECURE_CLIENTS_MAX} clients with secure sums",
        _too_many,
        f"draws {{found}} clients, and a secure sum is of at most {SECURE_CLIENTS_MAX}; lower "
        "run.cohort = {run.cohort}",
    ),
    Rule(
        ("simulation.executor", ENABLED),
        '"sequential" or "auto" with secure sums',
        _secure_with(lambda config: config.simulation.executor not in ("auto", "sequential")),
        '= "{simulation.executor}" does not run clients that talk to each other; with secure '
        'aggregation it must be "sequential" or "auto"',
    ),
    Rule(
        ("simulation.devices", ENABLED),
        "not with secure sums",
        _secure_with(lambda config: config.simulation.devices is not None),
        "does not know the messages of secure sums; remove it, or set enabled to false",
    ),
    Rule(
        ("simulation.adversaries", ENABLED),
        "not with secure sums",
        _secure_with(lambda config: config.simulation.adversaries is not None),
        "are about updates that secure aggregation hides; remove them, or set enabled to false",
    ),
    Rule(
        ("compression", ENABLED),
        "not with secure sums",
        _secure_with(lambda config: config.compression is not None),
        "cannot be added up under masks, and which values a sparse update has tells about the data; "
        f"remove it and lower {SECTION}.value_bits, or set enabled to false",
    ),
    Rule(
        (SECTION, f"{SECTION}.corrupt_fraction", ENABLED),
        "its fractions, and bits for the sums of a cohort, leave a safe plan for the largest group",
        _unsafe,
        "is not safe: {found}",
    ),
)
