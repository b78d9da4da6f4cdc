"""A run's sites as clients are told of them: each finds the index that the server's list has."""

from __future__ import annotations

import random

import pytest

from meadow.transport.run_sites import index_of, pack_sites

LISTS = {
    "none": [],
    "one": [1],
    "a gap": [1, 2, 4],
    "bytes": [8, 9, 16, 17, 64],
    "joined": [2, 5, 9, 3, 12, 1],
    "joined as the last": [1, 2, 3, 11],
    "many": sorted(random.Random(1).sample(range(1, 5000), 2000)),
}


@pytest.mark.parametrize("nodes", LISTS.values(), ids=LISTS.keys())
def test_each_finds_its_place(nodes: list[int]) -> None:
    """Those in the list have their place in it, all others none."""
    packed = pack_sites(nodes)
    assert packed.count == len(nodes)
    found = [index_of(node, packed.bitmap, packed.joined) for node in nodes]
    assert found == list(range(len(nodes)))
    others = {*range(1, max(nodes, default=0) + 20)} - {*nodes}
    assert {index_of(node, packed.bitmap, packed.joined) for node in others} <= {None}


def test_ten_thousand_sites_are_small() -> None:
    """What every client of a large fleet is told is a bit a site."""
    packed = pack_sites(range(1, 10_001))
    assert (len(packed.bitmap), packed.joined) == (1250, [])
