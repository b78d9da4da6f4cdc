"""Shares of sites: one split a process, never a stale one, and no time spent on the rest."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from meadow.errors import ConfigError
from meadow.partitioning import memory as partition_memory
from meadow.partitioning.memory import forget, share_of
from meadow.partitioning.partition import Partition

LABELLED = Partition(kind="dirichlet", alpha=0.1)
LABELS = np.arange(200) % 10


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """How many splits and hashes were made since the test began."""
    counts = {"splits": 0, "hashes": 0}
    split, hashed = Partition.split, partition_memory._hash_of

    def counted_split(*args: Any, **named: Any) -> Any:
        counts["splits"] += 1
        return split(*args, **named)

    def counted_hash(array: Any) -> Any:
        counts["hashes"] += 1
        return hashed(array)

    monkeypatch.setattr(Partition, "split", counted_split)
    monkeypatch.setattr(partition_memory, "_hash_of", counted_hash)
    forget()
    yield counts
    forget()


def shares(targets: Any, rule: Partition = LABELLED, **named: Any) -> list[list[int]]:
    return [share_of(rule, targets, i, count=4, seed=3, **named).tolist() for i in range(4)]


def frozen(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    copy = values.copy()
    copy.flags.writeable = False
    return copy


def test_what_cannot_change_is_hashed_once(made: dict[str, int]) -> None:
    """A read-only array or a tensor is known by what it is; so is the array of a view."""
    array, tensor = frozen(LABELS), torch.from_numpy(LABELS.copy())
    expected = [share.tolist() for share in LABELLED.split(LABELS, 4, 3)]
    made["splits"] = 0
    for _ in range(3):
        assert shares(array) == shares(tensor) == expected
    assert made == {"splits": 1, "hashes": 2}


def test_rules_that_look_at_no_labels_hash_nothing(made: dict[str, int]) -> None:
    """Only the number of samples decides "iid", "size" and "feature"."""
    for kind in ("iid", "size", "feature"):
        first = shares(LABELS, Partition(kind=kind))
        assert shares(LABELS[::-1] + 1, Partition(kind=kind)) == first
        assert shares(LABELS[:100], Partition(kind=kind)) != first
    assert made == {"splits": 6, "hashes": 0}


CHANGES = {
    "array": lambda: LABELS.copy(),
    "list": lambda: LABELS.tolist(),
    "read-only view of an array": lambda: np.broadcast_to(LABELS.copy(), LABELS.shape),
    "tensor": lambda: torch.from_numpy(LABELS.copy()),
    "view of a tensor": lambda: torch.from_numpy(np.append(LABELS, 1))[:-1],
    "array of objects": lambda: LABELS.astype(object),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_changed_targets_get_no_stale_split(kind: str, made: dict[str, int]) -> None:
    """One label changed in place, and the split is that of the new labels."""
    targets: Any = CHANGES[kind]()
    before = shares(targets)
    owner = targets if getattr(targets, "base", None) is None else targets.base
    owner[0] = 9
    new = np.array([9, *LABELS[1:]])
    assert shares(targets) == [share.tolist() for share in LABELLED.split(new, 4, 3)] != before


def test_an_array_made_writable_again_is_looked_at(made: dict[str, int]) -> None:
    """Read-only is asked at each call, not remembered."""
    array = frozen(LABELS)
    before = shares(array)
    array.flags.writeable = True
    array[:100] = 0
    assert shares(array) != before


def test_a_new_array_in_an_old_ones_place_is_another(made: dict[str, int]) -> None:
    """When an array goes, so does what was known of it: its address may be used again."""
    for start in range(30):
        assert shares(frozen(LABELS + start % 3 * (np.arange(200) > 100)))
        gc.collect()
    assert made["hashes"] == 30
    assert not partition_memory._contents


def test_the_splits_kept_are_few(made: dict[str, int]) -> None:
    """A process that goes through many seeds does not keep them all."""
    for seed in range(10):
        share_of(LABELLED, LABELS, 0, count=4, seed=seed)
    assert len(partition_memory._splits) == partition_memory.SPLITS_KEPT
    share_of(LABELLED, LABELS, 0, count=4, seed=9)
    assert made["splits"] == 10


def test_a_share_is_the_sites_own(made: dict[str, int]) -> None:
    """What one site does with its share does not reach the next one that asks."""
    share = share_of(Partition(), LABELS, 1, count=4, seed=0)
    share[:] = -1
    assert (share_of(Partition(), LABELS, 1, count=4, seed=0) >= 0).all()


def test_groups_decide_natural_shares(made: dict[str, int]) -> None:
    """Groups are looked at for "natural" alone, as lists of names, too."""
    writers = [f"writer {number // 20}" for number in range(200)]
    natural = Partition(kind="natural")
    assert shares(LABELS, natural, groups=writers) == shares(LABELS[::-1], natural, groups=writers)
    assert made["splits"] == 1
    assert shares(LABELS, Partition(), groups=writers) == shares(LABELS, Partition())
    with pytest.raises(ConfigError, match="which samples belong together"):
        shares(LABELS, natural)


def test_a_site_that_is_not_there_is_refused() -> None:
    """An index outside of the sites is an error, not the last site's share."""
    for index in (-1, 4):
        with pytest.raises(ConfigError, match=rf"must be in \[0, 4\), got {index}"):
            share_of(Partition(), LABELS, index, count=4, seed=0)
