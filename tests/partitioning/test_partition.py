"""Partitions: every sample goes to exactly one client, as the rule says."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meadow.errors import ConfigError
from meadow.partitioning.partition import Partition, PartitionKind

KINDS: list[PartitionKind] = ["iid", "dirichlet", "shards", "size", "feature"]


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


SPLITS_OF_0_1 = [
    ("iid", {}, "1808b5d2cd3214d4"),
    ("feature", {}, "1808b5d2cd3214d4"),
    ("dirichlet", {"alpha": 0.1}, "e2d0964b6f5f6bae"),
    ("dirichlet", {"alpha": 0.1, "min_samples": 9}, "76900363597b1be0"),
    ("shards", {"classes_per_client": 3}, "644e7aee2b801be4"),
    ("size", {"alpha": 0.05, "min_samples": 4}, "340a5134fb4412f3"),
]
"""Hashes of the splits that version 0.1.0 made, one list of samples a client."""


@pytest.mark.parametrize(("kind", "options", "expected"), SPLITS_OF_0_1)
def test_splits_do_not_change_between_versions(
    kind: PartitionKind, options: dict[str, int | float], expected: str
) -> None:
    """A run that goes on under a newer version has the clients that it began with."""
    rule = Partition(kind=kind, **options)  # type: ignore[arg-type]
    digest = sha256()
    for share in rule.split(np.arange(997) * 7 % 13 % 10, 60, seed=11):
        digest.update(len(share).to_bytes(4, "little") + share.astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == expected


def test_shares_are_a_sequence_that_cannot_be_written_to() -> None:
    """Shares count from both ends, come in slices, and stay what they are."""
    shares = Partition().split(np.zeros(10), 4, seed=0)
    assert (shares[-1] == shares[3]).all()
    assert [len(share) for share in shares[1:3]] == [3, 2]
    with pytest.raises(IndexError):
        shares[4]
    with pytest.raises(ValueError, match="read-only"):
        shares[0][0] = 7


def test_a_million_clients_are_two_arrays() -> None:
    """A split keeps one number a sample and one a client, and still covers every sample."""
    shares = Partition(kind="size", alpha=0.1).split(np.zeros(400_000), 100_000, seed=1)
    assert len(shares[0].base) == 400_000  # type: ignore[arg-type]
    assert min(len(share) for share in shares) == 1
    assert sum(len(share) for share in shares) == 400_000


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
        ({"noise_variance": -0.1}, "noise_variance must be a finite number >= 0, got -0.1"),
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


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.sampled_from("abcdefghij"), min_size=20, max_size=200),
    count=st.integers(1, 10),
    seed=st.integers(0, 2**63 - 1),
)
def test_natural_groups_stay_whole(groups: list[str], count: int, seed: int) -> None:
    """Every group has one client, every client a group, and about as many as the others."""
    kinds = len(set(groups))
    count = min(count, kinds)
    named = np.array(groups)
    shares = Partition(kind="natural").split(named, count, seed, groups=named)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(groups)))
    dealt = [np.unique(named[share]) for share in shares]
    assert sorted(np.concatenate(dealt).tolist()) == sorted(set(groups))
    assert {len(hand) for hand in dealt} <= {kinds // count, -(-kinds // count)}
    assert all((np.diff(share) > 0).all() for share in shares)


def test_natural_groups_are_refused_with_a_remedy() -> None:
    """Groups that are missing, too few, too small or of another number say so."""
    rule, targets = Partition(kind="natural"), np.zeros(6)
    with pytest.raises(ConfigError, match=r"call site.share_of\(targets, groups=...\)"):
        rule.split(targets, 2, seed=0)
    with pytest.raises(ConfigError, match=r"2 groups are too few for 3 clients .* lower clients"):
        rule.split(targets, 3, seed=0, groups=np.array([1, 1, 1, 2, 2, 2]))
    with pytest.raises(ConfigError, match=r"shape \(6,\), got \(5,\)"):
        rule.split(targets, 2, seed=0, groups=np.zeros(5))
    with pytest.raises(ConfigError, match="have 1 samples, fewer than min_samples = 3"):
        Partition(kind="natural", min_samples=3).split(
            targets, 2, seed=0, groups=np.array([1, 1, 1, 1, 1, 2])
        )
