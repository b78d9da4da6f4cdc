"""Computes epsilon from events: in closed form if there is one, else by dp-accounting.

A Gaussian sum of a Poisson-sampled cohort has no closed form. Its privacy loss distribution (PLD)
is composed numerically, with pessimistic rounding; Rényi differential privacy (RDP) gives a second
bound, which is looser but numerically robust.

Source: dp-accounting 0.6 (Google); Doroshenko et al., "Connect the dots" (2022) for PLD; Mironov,
Talwar, Zhang, "Rényi differential privacy of the sampled Gaussian mechanism" (2019) for RDP.
"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from ....errors import ConfigError
from ....strategies.algorithms.bounds import require_whole
from .concentrated import epsilon_of_line
from .events import (
    ConcentratedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PoissonEvent,
    SeparatedEvent,
    StepsEvent,
)
from .gaussian import epsilon_of_cost

__all__ = ["Accountant", "Draws", "counted_as", "epsilon_of", "epsilon_of_draws", "epsilon_of_many"]

Accountant = Literal["pld", "rdp", "least"]
"""The bound to use: by the privacy loss distribution, by Renyi divergences, or the lower of both."""
Draws = tuple[tuple[PoissonEvent, int], ...]
"""Kinds of releases of Poisson-sampled cohorts, and the number of each kind."""
GRID_EXACT = 8
GRID_RATIO = 1.1
INTERVALS = ((1e-3, 0.0), (1e-4, 1.0), (1e-5, 4.0))
"""The intervals of the grid to which privacy losses are rounded up, each with the least noise
multiplier for it. With less noise, losses are large: a finer grid would be long and gain little."""
FINE = 500
"""A finer grid hardly changes an epsilon of at least this many intervals."""
RDP_EPSILON = 10.0
"""Above this, the bound by Renyi divergences is never the lower one."""


def epsilon_of(event: Event, *, count: int, delta: float, accountant: Accountant = "pld") -> float:
    """Return the epsilon of `count` releases like `event`.

    Guarantees: an upper bound for one client's data added or removed; exact for Gaussian events.
    Edge cases: 0 for no releases.
    Raises:
        ConfigError: dp-accounting is needed and not installed.
    """
    require_whole("count", count, at_least=0)
    if count == 0:
        return 0.0
    if isinstance(event, SeparatedEvent):
        event = event.event
    if isinstance(event, GaussianEvent):
        return epsilon_of_cost(count * event.cost, delta)
    if isinstance(event, StepsEvent):
        steps = count * event.steps
        return epsilon_of(event.event, count=steps, delta=delta, accountant=accountant)
    if isinstance(event, ConcentratedEvent):
        return epsilon_of_line(count * event.cost, delta)
    if isinstance(event, LaplaceEvent):
        return min(count * event.epsilon, epsilon_of_line(count * event.cost, delta))
    return epsilon_of_draws(((event, count),), delta=delta, accountant=accountant)


def epsilon_of_draws(draws: Draws, *, delta: float, accountant: Accountant = "pld") -> float:
    """Return the epsilon of releases of cohorts that are Poisson-sampled independently.

    Edge cases: 0 for no releases.
    Raises:
        ConfigError: dp-accounting is needed and not installed.
    """
    draws = tuple((event, count) for event, count in draws if count)
    if not draws:
        return 0.0
    if all(event.probability == 1 for event, _ in draws):
        return epsilon_of_cost(sum(count * event.event.cost for event, count in draws), delta)
    return _by_dp_accounting(draws, delta, accountant)


def epsilon_of_many(event: Event, *, count: int, delta: float, planned: int) -> float:
    """Return an upper bound of the epsilon of `count` of `planned` releases; calls for every count
    are fast, as few different bounds are computed.

    Guarantees: at least that of `count` releases; at most that of a tenth more, and of `planned`.
    """
    return epsilon_of(event, count=counted_as(count, planned), delta=delta)


def counted_as(count: int, planned: int) -> int:
    """Return the next count on a grid: all below 8, then steps of a tenth, and `planned` itself."""
    step = count
    if count > GRID_EXACT:
        step = GRID_EXACT
        while step < count:
            step = int(step * GRID_RATIO) + 1
    return min(step, planned) if count <= planned else step


@lru_cache(maxsize=256)
def _by_dp_accounting(draws: Draws, delta: float, accountant: Accountant) -> float:
    dp = _dp_accounting()
    if accountant == "rdp":
        return _epsilon_by(dp.rdp.RdpAccountant(), dp, draws, delta)
    noise = min(event.event.noise_multiplier for event, _ in draws)
    found = math.inf
    for interval in (size for size, least in INTERVALS if noise >= least):
        made = dp.pld.PLDAccountant(value_discretization_interval=interval)
        found = min(found, _epsilon_by(made, dp, draws, delta))
        if found >= FINE * interval:
            break
    if accountant == "least" and found < RDP_EPSILON:
        return min(found, _by_dp_accounting(draws, delta, "rdp"))
    return found


def _epsilon_by(made: Any, dp: Any, draws: Draws, delta: float) -> float:
    for event, count in draws:
        made.compose(_dp_event(dp, event), count)
    return float(made.get_epsilon(delta))


def _dp_event(dp: Any, event: PoissonEvent) -> Any:
    released = dp.GaussianDpEvent(event.event.noise_multiplier)
    return dp.PoissonSampledDpEvent(event.probability, released)


def _dp_accounting() -> Any:
    try:
        import_module("dp_accounting.pld")
        import_module("dp_accounting.rdp")
        return import_module("dp_accounting")
    except ImportError:
        raise ConfigError(
            "privacy that is amplified by sampling needs dp-accounting: "
            "pip install 'meadow-fl[dp]', or set sampling = \"fixed\""
        ) from None
