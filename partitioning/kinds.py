"""The ways to divide samples: each returns a `Division`, drawn from the generator handed in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .shares import Division, Indices

__all__ = ["dirichlet", "iid", "natural", "shards", "size"]


def iid(samples: int, count: int, rng: np.random.Generator) -> Division:
    """Deal samples at random, equally."""
    return Division(order=rng.permutation(samples), sizes=_even(samples, count))


def size(samples: int, count: int, rng: np.random.Generator, *, alpha: float) -> Division:
    """Deal samples at random, in proportions drawn from Dirichlet(alpha)."""
    order = rng.permutation(samples)
    return Division(order=order, sizes=_uneven(samples, _proportions(alpha, count, rng)))


def dirichlet(
    targets: NDArray[np.generic], count: int, rng: np.random.Generator, *, alpha: float
) -> Division:
    """Deal each class at random, in proportions drawn from Dirichlet(alpha) for that class.

    Source: Hsu, Qi, Brown 2019 (arXiv 1909.06335).
    """
    by_label, ends = _by_label(targets)
    order, owners, start = [], [], 0
    for end in ends.tolist():
        order.append(rng.permutation(by_label[start:end]))
        sizes = _uneven(end - start, _proportions(alpha, count, rng))
        owners.append(np.repeat(np.arange(count), sizes))
        start = end
    return Division.of_owners(np.concatenate(order), np.concatenate(owners), count)


def shards(
    targets: NDArray[np.generic],
    count: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int,
) -> Division:
    """Sort by label, cut into equal shards, and deal every client so many of them.

    Source: McMahan et al. 2017 (arXiv 1602.05629, section 3).
    Raises:
        ConfigError: there are fewer samples than shards.
    """
    pieces = count * classes_per_client
    if len(targets) < pieces:
        raise ConfigError(
            f"{len(targets)} samples are too few for {count} clients with "
            f"{classes_per_client} shards each: lower clients or classes_per_client"
        )
    shuffled = rng.permutation(len(targets))
    by_label = shuffled[np.argsort(targets[shuffled], kind="stable")]
    sizes = _even(len(targets), pieces)
    dealt = rng.permutation(pieces)
    order = by_label[_ranges((np.cumsum(sizes) - sizes)[dealt], sizes[dealt])]
    return Division(order=order, sizes=sizes[dealt].reshape(count, classes_per_client).sum(axis=1))


def natural(
    groups: NDArray[np.generic] | None, samples: int, count: int, rng: np.random.Generator
) -> Division:
    """Deal whole groups at random, as many to each client or one more.

    Raises:
        ConfigError: `groups` are missing, not one a sample, or fewer than clients.
    """
    if groups is None:
        raise ConfigError(
            'partition "natural" must know which samples belong together: call '
            "site.share_of(targets, groups=...) with one group a sample, or choose another partition"
        )
    if groups.shape != (samples,):
        raise ConfigError(f"groups must be one a sample, shape ({samples},), got {groups.shape}")
    by_group, ends = _by_label(groups)
    if len(ends) < count:
        raise ConfigError(
            f"{len(ends)} groups are too few for {count} clients with at least one each: "
            "lower clients"
        )
    sizes = np.diff(ends, prepend=0)
    dealt = rng.permutation(len(ends))
    order = by_group[_ranges((ends - sizes)[dealt], sizes[dealt])]
    firsts = np.cumsum(hands := _even(len(ends), count)) - hands
    return Division(order=order, sizes=np.add.reduceat(sizes[dealt], firsts))


def _by_label(labels: NDArray[np.generic]) -> tuple[Indices, Indices]:
    """Return the samples sorted by label and then index, and where each label ends."""
    _, numbers = np.unique(labels, return_inverse=True)
    return np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))


def _ranges(starts: Indices, sizes: Indices) -> Indices:
    """Return start, start + 1, ... of every range, one after the other."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(sizes.sum())


def _even(samples: int, count: int) -> Indices:
    """Return sizes that differ by one at most, the larger ones first."""
    sizes = np.full(count, samples // count, dtype=np.int64)
    sizes[: samples % count] += 1
    return sizes


def _uneven(samples: int, proportions: NDArray[np.float64]) -> Indices:
    ends = np.rint(np.cumsum(proportions)[:-1] * samples).astype(np.int64)
    return np.diff(ends, prepend=0, append=samples)


def _proportions(alpha: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    drawn = rng.dirichlet(np.full(count, alpha))
    if not np.isfinite(drawn).all():  # every gamma variate underflowed: one client has all
        drawn = np.zeros(count)
        drawn[rng.integers(count)] = 1.0
    return drawn
