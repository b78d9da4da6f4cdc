"""The mean of what clients report beside their params: losses, accuracies, ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import RunError

__all__ = ["MetricMeans", "MetricOfMeans", "Metrics", "computed", "scalars_of", "statistics_of"]

Metrics = dict[str, float | None]
"""Metrics by name; None is a value that is not finite."""

MetricOfMeans = tuple[int, Callable[[Sequence[float]], float]]
"""How many means a metric is computed from, and how."""

VALUE_MAX = 1e290
"""Larger values are taken for infinite: their weighted sum would be."""


def scalars_of(metrics: Mapping[str, object] | None) -> Metrics:
    """Return the single numbers of a record; lists are left out."""
    return {
        name: float(value) if -VALUE_MAX < value < VALUE_MAX else None
        for name, value in (metrics or {}).items()
        if isinstance(value, int | float)
    }


class MetricMeans:
    """Averages metrics over clients, weighted by their number of examples.

    Guarantees: a mean does not depend on the order of the clients, to the last bit.
    Edge cases: a metric that only some report, or report a finite value of, is averaged over
        those; it is None if there are none.
    """

    def __init__(self) -> None:
        self._terms: dict[str, list[tuple[float, float]]] = {}

    def add(self, metrics: Mapping[str, float | None], *, weight: float) -> None:
        """Add what one client reports."""
        for name, value in metrics.items():
            terms = self._terms.setdefault(name, [])
            if value is not None:
                terms.append((weight, weight * value))

    def means(self) -> Metrics:
        """Return the means, by name in alphabetical order."""
        return {name: _mean(self._terms[name]) for name in sorted(self._terms)}


def _mean(terms: list[tuple[float, float]]) -> float | None:
    if not terms:
        return None
    return math.fsum(term for _, term in terms) / math.fsum(weight for weight, _ in terms)


def statistics_of(name: str, size: int) -> list[str]:
    """Return the names of the means that a metric is computed from."""
    return [f"{name}[{place}]" for place in range(size)]


def computed(metrics: Mapping[str, Any], additive: Mapping[str, MetricOfMeans]) -> dict[str, Any]:
    """Return metrics with the value of each additive one in the place of its means; None if a mean is
    missing, or it has no value.

    Raises:
        RunError: the app's own function fails.
    """
    made = dict(metrics)
    for name, (size, value_of) in additive.items():
        parts = statistics_of(name, size)
        if not any(part in made for part in parts):
            continue
        means = [made.pop(part, None) for part in parts]
        made[name] = None
        if any(mean is None for mean in means):
            continue
        try:
            value = float(value_of([float(mean) for mean in means if mean is not None]))
        except Exception as error:  # the app's own function
            raise RunError(f"metric {name!r} cannot be computed: {error!r}") from error
        made[name] = value if math.isfinite(value) else None
    return made
