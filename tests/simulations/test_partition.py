"""Partitions: every sample goes to exactly one client, as the rule says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meadow.errors import ConfigError
from meadow.simulations.partition import Partition, PartitionKind

KINDS: list[PartitionKind] = ["iid", "dirichlet", "shards", "size"]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    labels=st.lists(st.integers(0, 9), min_size=60, max_size=300),
    count=st.integers(1, 20),
    alpha=st.sampled_from([1e-6, 0.01, 0.5, 100.0]),
    min_samples=st.integers(1, 3),
    seed=st.integers(0, 2**63 - 1),
)
def test_shares_are_disjoint_and_complete(
    kind: PartitionKind,
    labels: list[int],
    count: int,
    alpha: float,
    min_samples: int,
    seed: int,
) -> None:
    """Whatever the rule, all samples are given away, once, and nobody has too few."""
    rule = Partition(kind=kind, alpha=alpha, min_samples=min_samples)
    shares = rule.split(np.array(labels), count, seed)
    assert len(shares) == count
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(labels)))
    assert all(len(share) >= min_samples for share in shares)
    assert all((np.diff(share) > 0).all() for share in shares)


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind: PartitionKind) -> None:
    """The same seed gives the same shares; another seed gives others."""
    targets = np.arange(500) % 10
    rule = Partition(kind=kind)
    first, again, other = (rule.split(targets, 7, seed) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any(a.shape != b.shape or (a != b).any() for a, b in zip(first, other, strict=True))


def test_iid_shares_are_equal() -> None:
    """Shares of "iid" differ by one sample at most."""
    sizes = [len(share) for share in Partition().split(np.zeros(103), 10, seed=0)]
    assert sorted(set(sizes)) == [10, 11]


def test_shards_bound_the_classes_of_a_client() -> None:
    """With classes as large as a shard, a client sees exactly so many classes or fewer."""
    targets = np.repeat(np.arange(10), 20)
    shares = Partition(kind="shards", classes_per_client=2).split(targets, 10, seed=3)
    assert max(len(np.unique(targets[share])) for share in shares) == 2


def test_small_alpha_is_more_uneven() -> None:
    """Label skew grows as alpha falls: the mean share of a client's top class shows it."""
    targets = np.arange(2000) % 10

    def top_class(alpha: float) -> float:
        shares = Partition(kind="dirichlet", alpha=alpha).split(targets, 10, seed=5)
        tops = [np.bincount(targets[s], minlength=10).max() / len(s) for s in shares]
        return float(np.mean(tops))

    assert top_class(0.05) > 0.5
    assert top_class(100.0) < 0.2


def test_size_skews_quantity_not_labels() -> None:
    """Shares of "size" are uneven, and labels need not be classes at all."""
    sizes = [
        len(share)
        for share in Partition(kind="size", alpha=0.3).split(np.random.rand(1000), 10, seed=2)
    ]
    assert max(sizes) > 3 * min(sizes)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kind": "random"}, 'partition must be one of "iid", "dirichlet"'),
        ({"alpha": 0.0}, "alpha must be a finite number > 0, got 0.0"),
        ({"alpha": float("nan")}, "alpha must be a finite number"),
        ({"classes_per_client": 0}, "classes_per_client must be >= 1, got 0"),
        ({"min_samples": 0}, "min_samples must be >= 1, got 0"),
    ],
)
def test_a_wrong_rule_says_what_is_wrong(settings: dict[str, object], sentence: str) -> None:
    """Every argument has a bound, and the message names it and the value."""
    with pytest.raises(ConfigError, match=sentence.replace('"', ".")):
        Partition(**settings)  # type: ignore[arg-type]


def test_too_few_samples_are_refused() -> None:
    """A partition that cannot be made is refused with the numbers and the remedy."""
    with pytest.raises(ConfigError, match="5 samples are too few for 10 clients"):
        Partition().split(np.zeros(5), 10, seed=0)
    with pytest.raises(ConfigError, match="one label a sample"):
        Partition().split(np.zeros((5, 2)), 2, seed=0)
    with pytest.raises(ConfigError, match="lower clients or classes_per_client"):
        Partition(kind="shards", classes_per_client=9).split(np.zeros(20), 4, seed=0)
