"""Noise of a round that partly cancels the noise of earlier rounds (DP-FTRL).

Round t releases x_t + w_t with w = C^-1 z, for independent normals z: the same as releasing
C x + z, and multiplying by C^-1. So a client's cost follows from the norm of its contribution to
C x. Each participation adds a column of C; columns here have a norm of at most 1, and those of
rounds that are `separation` apart share no row. Then k participations cost as much as k
independent releases, while sums over many rounds, such as a model, have far less noise.

Sources: Kairouz, McMahan, Song, Thakkar, Thakurta, Xu, "Practical and private (deep) learning
without sampling or shuffling" (2021): trees with restarts; Choquette-Choo et al., "(Amplified)
banded matrix factorization" (2023), sensitivity under bands and min-separation; Denisov et al., "Improved differential privacy for SGD via optimal private linear
operators on adaptive streams" (2022), theorem 2.1: it holds for inputs that depend on earlier
releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ....strategies.algorithms.bounds import require_choice, require_whole
from .toeplitz import best_coefficients, inverse_series

__all__ = ["KINDS", "Banded", "Correlation", "NoiseStep", "Terms", "Tree", "correlated"]

KINDS = ("none", "banded", "tree")
BANDS = 32
"""The most bands if none are configured, as each is a copy of the params in memory."""

Terms = tuple[tuple[int, float], ...]
"""Pairs of a round and the factor of its stored values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseStep:
    """How a round's noise is made: store `fresh` * z + `made_of`; release that plus `beside`.

    Attributes:
        stored: the rounds, perhaps with this one, whose stored values later rounds need.
    """

    fresh: float
    made_of: Terms
    beside: Terms
    stored: tuple[int, ...]


class Correlation(Protocol):
    """The correlation of the noise of rounds 1, 2, ...

    Guarantees: as a matrix C with w = C^-1 z, every column's L2 norm is at most 1, no entry is
        larger than 1, and columns `separation` apart have no row in common.
    """

    @property
    def kind(self) -> str: ...
    @property
    def separation(self) -> int: ...
    def step(self, number: int) -> NoiseStep: ...
    def begins(self, number: int) -> int:
        """Return the first round that this round's noise depends on."""

    def sum_variances(self, rounds: int) -> NDArray[np.float64]:
        """Return the variances of w_1 + ... + w_t, for t = 1 ... `rounds`, of unit normals z."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Banded:
    """A banded Toeplitz matrix, optimized for a number of rounds.

    Attributes:
        bands: the rounds that a column covers; bands - 1 rows of noise are stored.
        rounds: the number of rounds that it is optimized for; it is valid for any number.
    """

    rounds: int
    bands: int

    def __post_init__(self) -> None:
        require_whole("bands", self.bands, at_least=1)
        require_whole("rounds", self.rounds, at_least=1)

    @property
    def kind(self) -> str:
        return "banded"

    @property
    def separation(self) -> int:
        return self.bands

    @property
    def coefficients(self) -> tuple[float, ...]:
        return best_coefficients(self.rounds, self.bands)

    def step(self, number: int) -> NoiseStep:
        first, *others = self.coefficients
        made_of = tuple(
            (number - back, -factor / first)
            for back, factor in enumerate(others, start=1)
            if back < number
        )
        stored = tuple(range(max(1, number - len(others) + 1), number + 1))
        return NoiseStep(fresh=1 / first, made_of=made_of, beside=(), stored=stored)

    def begins(self, number: int) -> int:
        return 1

    def sum_variances(self, rounds: int) -> NDArray[np.float64]:
        inverse = inverse_series(np.array(self.coefficients), rounds)
        return np.asarray(np.cumsum(np.cumsum(inverse) ** 2), np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A binary tree over rounds, restarted every `restart` rounds.

    The sum of the first t rounds of a tree is that of one node per binary digit 1 of t. So each
    round adds one node, which covers as many rounds as the lowest digit 1 of its number; nodes
    that no sum needs are never made.
    """

    restart: int

    def __post_init__(self) -> None:
        require_whole("min_separation", self.restart, at_least=1)

    @property
    def kind(self) -> str:
        return "tree"

    @property
    def separation(self) -> int:
        return self.restart

    @property
    def height(self) -> int:
        """The number of nodes that cover the first round of a tree; the most of any round."""
        return self.restart.bit_length()

    def step(self, number: int) -> NoiseStep:
        start = self.begins(number) - 1
        place = number - start
        parts = [start + part for part in _ancestors(place)]
        made_of = tuple((part, 1.0) for part in parts[1:2])
        beside = ((number - 1, -1.0),) if place > 1 else ()
        stored = tuple(parts) if place < self.restart else ()
        return NoiseStep(fresh=self.height**0.5, made_of=made_of, beside=beside, stored=stored)

    def begins(self, number: int) -> int:
        return (number - 1) // self.restart * self.restart + 1

    def sum_variances(self, rounds: int) -> NDArray[np.float64]:
        full = self.height * self.restart.bit_count()
        return np.array(
            [
                done // self.restart * full + self.height * (done % self.restart).bit_count()
                for done in range(1, rounds + 1)
            ],
            np.float64,
        )


def correlated(kind: str, *, rounds: int, separation: int, bands: int | None) -> Correlation | None:
    """Return the correlation of this kind, None for "none".

    Without `bands`, there are as many as the clients' separation allows, at most 32.
    """
    require_choice("correlation", kind, KINDS)
    if kind == "tree":
        return Tree(restart=separation)
    if kind == "banded":
        return Banded(rounds=rounds, bands=bands or min(separation, BANDS))
    return None


def _ancestors(place: int) -> list[int]:
    """Return a number, then the number without its lowest binary digit 1, without the lowest two,
    ..."""
    found = []
    while place:
        found.append(place)
        place &= place - 1
    return found
