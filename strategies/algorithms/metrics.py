"""The mean of what clients report beside their params: losses, accuracies, ..."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["MetricMeans", "Metrics", "scalars_of"]

Metrics = dict[str, float | None]
"""Metrics by name; None is a value that is not finite."""

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
