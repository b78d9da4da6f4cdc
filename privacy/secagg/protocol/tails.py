"""Exact tails of the hypergeometric distribution, in whole numbers.

Server and clients compute their parameters separately and must agree exactly, so this module uses
no floating-point numbers. H(population, marked, drawn) is the number of marked clients among
`drawn` clients, drawn without replacement. Its probabilities are computed by recurrence.
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
    """Bound the probability that the loss of `missing` random clients disconnects the ring.

    That needs the loss of two groups of neighbours / 2 consecutive clients: n (n - k - 1) / 2
    pairs of positions, each with probability B! (n - k)! / ((B - k)! n!).

    Source: the degree of the Harary graph in Google's federated-compute, after Bell, Bonawitz,
        Gascón, Lepoint, Raykova (2020).
    """
    if neighbours > missing:
        return Fraction(0)
    pairs = Fraction(clients * (clients - neighbours - 1), 2)
    return pairs * Fraction(perm(missing, neighbours), perm(clients, neighbours))
