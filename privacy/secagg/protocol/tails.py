"""Exact tails of the hypergeometric distribution, in whole numbers.

Server and clients compute their parameters separately and must agree to the last bit, so there
are no floating-point numbers here. H(population, marked, drawn) is how many of `drawn` clients,
drawn without replacement, are marked. Of each count of marked ones, the ways to draw follow from those of the
count beside it.
"""

from __future__ import annotations

from fractions import Fraction
from math import comb, perm

__all__ = ["disconnects", "largest_rarely_below", "smallest_rarely_above"]


def smallest_rarely_above(population: int, marked: int, drawn: int, *, bound: Fraction) -> int:
    """Return the smallest x with P[H > x] <= bound."""
    room = comb(population, drawn) * bound.numerator // bound.denominator
    count = min(marked, drawn)
    ways = comb(marked, count) * comb(population - marked, drawn - count)
    tail = ways
    while count and tail <= room:
        ways *= count * (population - marked - drawn + count)
        ways //= (marked - count + 1) * (drawn - count + 1)
        tail += ways
        count -= 1
    return count


def largest_rarely_below(population: int, marked: int, drawn: int, *, bound: Fraction) -> int:
    """Return the largest t <= `drawn` with P[H < t] <= bound."""
    room = comb(population, drawn) * bound.numerator // bound.denominator
    count = max(0, drawn - (population - marked))  # fewer are impossible
    ways = comb(marked, count) * comb(population - marked, drawn - count)
    tail = ways
    while count < drawn and tail <= room:
        ways *= (marked - count) * (drawn - count)
        ways //= (count + 1) * (population - marked - drawn + count + 1)
        tail += ways
        count += 1
    return count


def disconnects(clients: int, missing: int, neighbours: int) -> Fraction:
    """Bound the probability that the ring falls apart when `missing` random clients are gone.

    It does so only if two groups of neighbours / 2 clients in a row are gone:
    n (n - k - 1) / 2 pairs of places, each with B! (n - k)! / ((B - k)! n!).

    Source: as Google's federated-compute chooses the degree of its Harary graph, after Bell,
        Bonawitz, Gascón, Lepoint, Raykova (2020).
    """
    if neighbours > missing:
        return Fraction(0)
    pairs = Fraction(clients * (clients - neighbours - 1), 2)
    return pairs * Fraction(perm(missing, neighbours), perm(clients, neighbours))
