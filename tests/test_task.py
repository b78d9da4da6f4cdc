"""What a user writes: a site asks for its share, and gets only that."""

from __future__ import annotations

import numpy as np
import pytest

import meadow
from meadow.errors import ConfigError
from meadow.partitioning.memory import forget
from meadow.partitioning.partition import Partition


def sites(count: int, **options: object) -> list[meadow.Site]:
    return [meadow.Site(index=index, count=count, **options) for index in range(count)]  # type: ignore[arg-type]


def test_the_sites_of_a_data_set_cover_it() -> None:
    """Every sample belongs to exactly one site, and lists are taken as well as arrays."""
    targets = [n % 3 for n in range(50)]
    shares = [site.share_of(targets) for site in sites(4, partition=Partition(kind="dirichlet"))]
    assert sorted(np.concatenate(shares).tolist()) == list(range(50))
    assert all(share.dtype == np.int64 for share in shares)


def test_a_share_is_what_the_partition_says() -> None:
    """Sites in different processes agree, because each computes the same split."""
    targets, rule = np.arange(40) % 5, Partition(kind="shards")
    expected = rule.split(targets, 4, seed=9)
    for site, share in zip(sites(4, partition=rule, seed=9), expected, strict=True):
        assert (site.share_of(targets) == share).all()


def test_a_data_set_is_divided_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand sites do not make a thousand splits; other data or another seed makes one."""
    made: list[int] = []
    split = Partition.split

    def counted(self: Partition, *args: object, **named: object) -> object:
        made.append(1)
        return split(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Partition, "split", counted)
    forget()
    targets = np.arange(60) % 4
    rule = Partition(kind="dirichlet")
    for site in sites(10, partition=rule):
        share = site.share_of(targets.copy())
        share[:] = -1  # what one site does with its share is its own affair
    assert len(made) == 1
    assert sum(len(site.share_of(targets)) for site in sites(10, partition=rule)) == 60
    assert min(site.share_of(targets).min() for site in sites(10, partition=rule)) == 0
    assert len(made) == 1
    sites(10, partition=rule, seed=1)[0].share_of(targets)
    sites(10, partition=rule)[0].share_of(targets + 1)
    assert len(made) == 3


def test_too_few_samples_are_refused() -> None:
    """A site of more sites than samples says so."""
    with pytest.raises(ConfigError, match="3 samples are too few for 5 clients"):
        sites(5)[0].share_of([0, 1, 2])
