"""Who took part in which rounds, counted in a table of bounded size, however many there are.

Rounds are counted in bins that become twice as wide when they do not suffice. Of more clients
than `CLIENTS_MAX` a sample is counted, by a hash of the client's id, which halves likewise: so
every client has the same chance to be in it, whenever it first took part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from .columns import Values

__all__ = ["CLIENTS_MAX", "CLIENT_BINS", "ROUND_BINS", "Participation", "Picture"]

CLIENTS_MAX = 20_000
"""Clients that are counted one by one: 20 MB."""
CLIENT_BINS = 160
ROUND_BINS = 256
ID_LENGTH_MAX = 200
_FIRST_CAPACITY = 256

ClientId = int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The table, drawn together to at most `CLIENT_BINS` by `ROUND_BINS` cells.

    Attributes:
        shares: how much of a cell's rounds its clients took part in, in [0, 1]; NaN where no
            round is known. Shape (client bins, round bins); clients are ordered by their ids.
        ids: the clients, in that order.
        clients_a_bin: clients in a cell; the last one may have fewer.
        rounds_a_bin: rounds in a cell.
        sample: one in so many clients was counted; 1 is all of them.
        counts: rounds that each client took part in, shape (clients,).
    """

    shares: Values
    ids: tuple[ClientId, ...]
    clients_a_bin: int
    rounds_a_bin: int
    sample: int
    counts: npt.NDArray[np.int64]


class Participation:
    """Counts; `add` rounds in their order."""

    def __init__(self, *, clients_max: int = CLIENTS_MAX) -> None:
        self._clients_max = clients_max
        self._rows: dict[ClientId, int] = {}
        self._counts = np.zeros((_FIRST_CAPACITY, ROUND_BINS), dtype=np.uint32)
        self._rounds = np.zeros(ROUND_BINS, dtype=np.uint32)
        self._width = 1
        self._sample = 1
        self._last_round = -1

    def add(self, number: int, clients: Iterable[object]) -> None:
        """Count a round, unless it was counted already; what is no id is left out."""
        if number <= self._last_round:
            return
        self._last_round = number
        while max(0, number - 1) // self._width >= ROUND_BINS:
            self._widen()
        place = max(0, number - 1) // self._width
        self._rounds[place] += 1
        for client in clients:
            if isinstance(client, int | str) and client not in self._rows:
                self._admit(client)
        rows = {self._rows.get(each, -1) for each in clients if isinstance(each, int | str)}
        self._counts[sorted(rows - {-1}), place] += 1

    def _widen(self) -> None:
        for table in (self._counts, self._rounds):
            pairs = table[..., 0::2] + table[..., 1::2]
            table[...] = 0
            table[..., : ROUND_BINS // 2] = pairs
        self._width *= 2

    def _admit(self, client: ClientId) -> None:
        if isinstance(client, str) and len(client) > ID_LENGTH_MAX:
            return
        if _hash(client) % self._sample:
            return
        if len(self._rows) == self._clients_max:
            self._halve()
            if _hash(client) % self._sample:
                return
        if len(self._rows) == len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._rows[client] = len(self._rows)

    def _halve(self) -> None:
        while len(self._rows) >= self._clients_max:
            self._sample *= 2
            kept = {each: row for each, row in self._rows.items() if not _hash(each) % self._sample}
            self._counts[: len(kept)] = self._counts[list(kept.values())]
            self._counts[len(kept) :] = 0
            self._rows = {each: row for row, each in enumerate(kept)}

    def picture(self) -> Picture | None:
        """Return what was counted; None if nobody took part in anything."""
        if not self._rows:
            return None
        ids = sorted(self._rows, key=lambda each: (isinstance(each, str), each))
        used = int(np.flatnonzero(self._rounds)[-1]) + 1
        counts = self._counts[[self._rows[each] for each in ids], :used].astype(np.int64)
        bins = -(-len(ids) // CLIENT_BINS)
        starts = np.arange(0, len(ids), bins)
        sizes = np.diff([*starts, len(ids)])
        possible = sizes[:, None] * self._rounds[None, :used].astype(np.float64)
        sums = np.add.reduceat(counts, starts, axis=0)
        shares = np.divide(sums, possible, out=np.full(sums.shape, np.nan), where=possible > 0)
        return Picture(
            shares=np.minimum(shares, 1.0),
            ids=tuple(ids),
            clients_a_bin=bins,
            rounds_a_bin=self._width,
            sample=self._sample,
            counts=counts.sum(axis=1),
        )


def _hash(client: ClientId) -> int:
    digest = blake2b(str(client).encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big")  # nobody can choose ids that all stay in the sample
