"""Releases whose Renyi divergence of each order is at most order * cost / 2 (concentrated DP).

This is the only bound used for Skellam noise, and for Laplace releases composed with others. A
Gaussian release of the same cost has exactly these divergences, and a closed form, which gives a
slightly smaller epsilon. Costs add up.

Sources: Bun, Steinke, "Concentrated differential privacy" (2016), definition 1.1 and proposition
1.4 (an eps-private release costs eps^2); Canonne, Kamath, Steinke, "The discrete Gaussian for
differential privacy" (2020), proposition 12 (to epsilon).
"""

from __future__ import annotations

import math

from ....strategies.algorithms.bounds import require_number

__all__ = ["epsilon_of_divergences", "epsilon_of_line"]

ORDERS = (*range(2, 513), *(int(512 * 1.02**step) for step in range(1, 600)))


def epsilon_of_line(cost: float, delta: float) -> float:
    """Return an epsilon for which releases of this total cost are (epsilon, delta)-private.

    Edge cases: 0 if nothing was released, infinite for an infinite cost.
    """
    return epsilon_of_divergences([cost / 2 * order for order in ORDERS], delta)


def epsilon_of_divergences(divergences: list[float], delta: float) -> float:
    """Return the least epsilon by the Renyi divergences at `ORDERS`, or at the first of them."""
    require_number("delta", delta, above=0, below=1)
    if any(math.isnan(each) or each < 0 for each in divergences):
        raise ValueError(f"divergences must be numbers >= 0, got {divergences[:3]}...")
    if max(divergences) == 0:
        return 0.0
    found = (
        divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        for order, divergence in zip(ORDERS, divergences, strict=False)
    )
    return float(max(0.0, min(found)))
