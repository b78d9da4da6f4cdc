"""How a simulation divides one data set among its clients.

Sources: label skew by a Dirichlet prior, Hsu, Qi, Brown 2019 (arXiv 1909.06335); shards of
sorted labels, McMahan et al. 2017 (arXiv 1602.05629, section 3). Only NumPy is needed here, so
that a site can ask for its share without loading the simulator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

__all__ = ["Partition", "PartitionKind", "share_of"]

SPLITS_KEPT = 4

PartitionKind = Literal["iid", "dirichlet", "shards", "size"]

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A rule for dividing samples.

    Attributes:
        kind: "iid": equal shares at random. "dirichlet": every class is divided in
            proportions drawn from Dirichlet(alpha). "shards": every client has samples of about
            `classes_per_client` classes. "size": random samples, the shares' sizes drawn from
            Dirichlet(alpha).
        alpha: the skew of "dirichlet" and "size"; towards 0 is more uneven.
        classes_per_client: for "shards".
        min_samples: the least that any client has.
    """

    kind: PartitionKind = "iid"
    alpha: float = 0.5
    classes_per_client: int = 2
    min_samples: int = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(PartitionKind):
            kinds = ", ".join(f'"{kind}"' for kind in get_args(PartitionKind))
            raise ConfigError(f"partition must be one of {kinds}, got {self.kind!r}")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ConfigError(f"alpha must be a finite number > 0, got {self.alpha}")
        if self.classes_per_client < 1:
            raise ConfigError(f"classes_per_client must be >= 1, got {self.classes_per_client}")
        if self.min_samples < 1:
            raise ConfigError(f"min_samples must be >= 1, got {self.min_samples}")

    def split(self, targets: NDArray[np.generic], count: int, seed: int) -> list[Indices]:
        """Return the indices of each of `count` shares, sorted.

        Shapes: `targets` (samples,) are class labels; only "dirichlet" and "shards" look at
            their values.
        Guarantees: the shares are disjoint, cover every sample, and have at least `min_samples`
            each; the same arguments give the same shares.
        Raises:
            ConfigError: `targets` are not one label a sample, or are too few.
        """
        if targets.ndim != 1:
            raise ConfigError(f"targets must be one label a sample, got shape {targets.shape}")
        if count < 1:
            raise ConfigError(f"clients must be >= 1, got {count}")
        if len(targets) < count * self.min_samples:
            raise ConfigError(
                f"{len(targets)} samples are too few for {count} clients with at least "
                f"{self.min_samples} each: lower clients or min_samples"
            )
        divide = {"iid": _iid, "dirichlet": _dirichlet, "shards": _shards, "size": _size}
        shares = divide[self.kind](self, targets, count, np.random.default_rng(seed))
        _fill_up(shares, self.min_samples)
        return [np.sort(np.asarray(share, dtype=np.int64)) for share in shares]


def share_of(
    rule: Partition, targets: NDArray[np.generic], index: int, *, count: int, seed: int
) -> Indices:
    """Return one share of `rule.split`; the last splits are remembered, so that a process with
    many sites divides its data set once.

    Raises:
        ConfigError: as `Partition.split`.
    """
    # The key is what the targets are, not which array holds them.
    content = np.ascontiguousarray(targets).tobytes()
    shares = _split(rule, content, targets.dtype.str, targets.shape, count, seed)
    return shares[index].copy()


@lru_cache(maxsize=SPLITS_KEPT)
def _split(
    rule: Partition, content: bytes, dtype: str, shape: tuple[int, ...], count: int, seed: int
) -> list[Indices]:
    return rule.split(np.frombuffer(content, dtype).reshape(shape), count, seed)


def _iid(
    _: Partition, targets: NDArray[np.generic], count: int, rng: np.random.Generator
) -> list[Indices]:
    return np.array_split(rng.permutation(len(targets)), count)


def _size(
    rule: Partition, targets: NDArray[np.generic], count: int, rng: np.random.Generator
) -> list[Indices]:
    return _cut(rng.permutation(len(targets)), _proportions(rule.alpha, count, rng))


def _dirichlet(
    rule: Partition, targets: NDArray[np.generic], count: int, rng: np.random.Generator
) -> list[Indices]:
    parts = [
        _cut(
            rng.permutation(np.flatnonzero(targets == label)), _proportions(rule.alpha, count, rng)
        )
        for label in np.unique(targets)
    ]
    return [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]


def _shards(
    rule: Partition, targets: NDArray[np.generic], count: int, rng: np.random.Generator
) -> list[Indices]:
    shards = count * rule.classes_per_client
    if len(targets) < shards:
        raise ConfigError(
            f"{len(targets)} samples are too few for {count} clients with "
            f"{rule.classes_per_client} shards each: lower clients or classes_per_client"
        )
    shuffled = rng.permutation(len(targets))
    by_label = shuffled[np.argsort(targets[shuffled], kind="stable")]
    pieces = np.array_split(by_label, shards)
    dealt = rng.permutation(shards).reshape(count, rule.classes_per_client)
    return [np.concatenate([pieces[shard] for shard in hand]) for hand in dealt]


def _proportions(alpha: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    drawn = rng.dirichlet(np.full(count, alpha))
    if not np.isfinite(drawn).all():  # every gamma variate underflowed: one client has all
        drawn = np.zeros(count)
        drawn[rng.integers(count)] = 1.0
    return drawn


def _cut(indices: Indices, proportions: NDArray[np.float64]) -> list[Indices]:
    ends = np.rint(np.cumsum(proportions)[:-1] * len(indices)).astype(np.int64)
    return np.split(indices, ends)


def _fill_up(shares: list[Indices], min_samples: int) -> None:
    """Give every share that is too small samples of the largest one, until none is."""
    for index in range(len(shares)):
        while (missing := min_samples - len(shares[index])) > 0:
            largest = max(range(len(shares)), key=lambda other: len(shares[other]))
            moved = min(missing, len(shares[largest]) - min_samples)
            kept, given = np.split(shares[largest], [len(shares[largest]) - moved])
            shares[largest] = kept
            shares[index] = np.concatenate([shares[index], given])
