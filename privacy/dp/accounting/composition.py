"""Composes releases of several kinds: the epsilon of runs with different noise on the same data.

Source: as in `accountant`, `gaussian`, `concentrated` and `example_level`. Each applies to some
kinds of releases; of those that apply, the first here is the tightest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..example_level import EXAMPLE_ORDERS, sampled_divergences
from .accountant import epsilon_of_draws
from .concentrated import epsilon_of_divergences, epsilon_of_line
from .events import ConcentratedEvent, GaussianEvent, LaplaceEvent, PoissonEvent

__all__ = ["Release", "Releases", "epsilon_of_releases"]

Release = GaussianEvent | ConcentratedEvent | LaplaceEvent | PoissonEvent
Releases = tuple[tuple[Release, int], ...]
"""Kinds of releases, and the number of each kind."""


def epsilon_of_releases(releases: Sequence[tuple[Release, int]], delta: float) -> float:
    """Return the epsilon of all releases together, for a client or an example that is in all.

    Guarantees: an upper bound for every order of the releases, also if they are adaptive.
    Edge cases: 0 for no releases.
    Raises:
        ConfigError: dp-accounting is needed and not installed.
    """
    merged: dict[Release, int] = {}
    for event, count in releases:
        merged[event] = merged.get(event, 0) + count
    found = [(event, count) for event, count in merged.items() if count]
    draws = [
        (
            event
            if isinstance(event, PoissonEvent)
            else PoissonEvent(probability=1.0, event=event),
            n,
        )
        for event, n in found
        if isinstance(event, PoissonEvent | GaussianEvent)
    ]
    if len(draws) == len(found):
        return epsilon_of_draws(tuple(draws), delta=delta, accountant="least")
    linear = [(event, n) for event, n in found if not isinstance(event, PoissonEvent)]
    cost = math.fsum(n * event.cost for event, n in linear)
    if len(linear) == len(found):
        return epsilon_of_line(cost, delta)
    columns = [[cost / 2 * order for order in EXAMPLE_ORDERS]]
    for event, count in found:
        if isinstance(event, PoissonEvent):
            one = sampled_divergences(event.probability, event.event.noise_multiplier)
            columns.append([count * each for each in one])
    return epsilon_of_divergences(
        [math.fsum(column) for column in zip(*columns, strict=True)], delta
    )
