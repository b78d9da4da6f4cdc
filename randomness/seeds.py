"""Independent random streams from one seed: cohorts, batches, dropout and noise.

`derive` names a single stream. `spread` and `epoch_orders` do the same for many clients in one
pass over arrays, so that a simulation of a large cohort need not visit them one by one;
`spread_one` and `epoch_order` give a single client the same numbers, without the arrays' cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

__all__ = ["Words", "derive", "epoch_order", "epoch_orders", "mix", "spread", "spread_one"]

Words = NDArray[np.uint64]
"""64-bit words, of any shape."""

_PADDING = np.uint64(1 << 63)
_ONE = np.uint64(1)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_WORD = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_PLACES_KEPT_MAX = 4096


def derive(seed: int, *parts: int | str) -> int:
    """Return the seed of the stream that `parts` name, for instance (round, client, "batches").

    Guarantees: the same arguments give the same 63-bit number on every machine and in every
        process; different arguments, as for any hash, unrelated ones. The int 1 and the text
        "1" differ, and so do ("ab", "c") and ("a", "bc").
    """
    named = b""
    for part in (seed, *parts):
        text = (f"i{part}" if isinstance(part, int) else f"s{part}").encode()
        named += len(text).to_bytes(8, "big") + text
    return int.from_bytes(sha256(named).digest()[:8], "big") >> 1


def mix(words: Words) -> Words:
    """Scramble 64-bit words, one to one.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014),
        the finaliser of SplitMix64 (Stafford's variant 13).
    """
    words = words ^ (words >> _SHIFTS[0])
    words *= _FACTORS[0]
    words ^= words >> _SHIFTS[1]
    words *= _FACTORS[1]
    words ^= words >> _SHIFTS[2]
    return words


def spread(seed: int, ids: NDArray[np.integer]) -> Words:
    """Return one stream's seed for each of `ids` (clients, for instance), of any shape.

    Guarantees: an id's seed depends on `seed` and that id alone.
    """
    return mix(np.uint64(seed) ^ mix(ids.astype(np.uint64) + np.uint64(_STEP)))


def spread_one(seed: int, number: int) -> int:
    """Return what `spread` does for a single id."""
    return _mix_one(seed ^ _mix_one((number + _STEP) & _WORD))


def _mix_one(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _WORD
    return word ^ (word >> 31)


def epoch_orders(
    seeds: Words, counts: NDArray[np.integer], epochs: Sequence[int]
) -> NDArray[np.int64]:
    """Return the order in which each client goes through its samples in each epoch.

    Shapes: `seeds` and `counts` are (clients,); the result is (epochs, clients, max(counts)): row
        i of an epoch begins with a permutation of 0 to counts[i] - 1; the rest of the row is
        unspecified.
    Guarantees: a client's order depends on its seed, its count and the epoch alone.
    """
    places = np.arange(int(counts.max(initial=0)), dtype=np.uint64)
    in_epochs = mix(seeds + np.array(epochs, np.uint64)[:, None])
    keys = mix(in_epochs[:, :, None] ^ mix(places + np.uint64(1)))
    keys >>= _ONE
    keys |= np.where(places >= counts.astype(np.uint64)[:, None], _PADDING, np.uint64(0))
    return np.argsort(keys, axis=2)


def epoch_order(seed: int, count: int, epoch: int) -> NDArray[np.int64]:
    """Return what `epoch_orders` does for a single client and epoch: (count,)."""
    places = _mixed_places if count <= _PLACES_KEPT_MAX else _mixed_places.__wrapped__
    keys = mix(np.uint64(_mix_one((seed + epoch) & _WORD)) ^ places(count))
    keys >>= _ONE
    return keys.argsort()


@lru_cache(maxsize=64)
def _mixed_places(count: int) -> Words:
    return mix(np.arange(1, count + 1, dtype=np.uint64))
