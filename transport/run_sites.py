"""The list of a run's sites, in which each client finds its own index.

All clients get the same list: the clients of a secure sum can verify that, and so a server cannot
choose a client's index. The list is a bitmap of node ids, bit n - 1 for node n, followed by the
sites that joined the run later, or whose ids are long, as those below a relay are, in order. 10,000
sites take 1.25 KB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .relaying import LEAF_BITS

__all__ = ["PackedSites", "index_of", "pack_sites"]


BITS_MAX = 64
"""So many bits of the bitmap may a site cost; a site that would cost more follows by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSites:
    """A run's sites, as an instruction carries them."""

    count: int
    bitmap: bytes
    joined: list[int]


def pack_sites(node_ids: Sequence[int]) -> PackedSites:
    """Pack a list of node ids (positive, each once)."""
    steps = enumerate(pairwise(node_ids), 1)
    end = next((place for place, (a, b) in steps if a > b), len(node_ids))
    longest = max(1 << LEAF_BITS, BITS_MAX * len(node_ids))
    end = next((at for at, node in enumerate(node_ids[:end]) if node > longest), end)
    bits = bytearray((max(node_ids[:end], default=0) + 7) // 8)
    for node in node_ids[:end]:
        bits[(node - 1) // 8] |= 1 << (node - 1) % 8
    return PackedSites(count=len(node_ids), bitmap=bytes(bits), joined=list(node_ids[end:]))


def index_of(node_id: int, bitmap: bytes, joined: Sequence[int]) -> int | None:
    """Return a node's index in the list, None if it is not listed."""
    byte, bit = divmod(node_id - 1, 8)
    if byte < len(bitmap) and bitmap[byte] >> bit & 1:
        below = int.from_bytes(bitmap[: byte + 1], "little") & ((1 << (node_id - 1)) - 1)
        return below.bit_count()
    if node_id not in joined:
        return None
    return int.from_bytes(bitmap, "little").bit_count() + list(joined).index(node_id)
