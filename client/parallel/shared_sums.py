"""Sums of gradients over the ranks of one machine, in memory that they share.

On the CPU the sockets that ranks would exchange gradients through cost the same cores that compute
them. Here each rank writes its gradients once and reads those of the others; only the word that
they are there goes through a socket, so that a rank that is lost is noticed as ever.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import distributed as dist

__all__ = ["SharedSums"]

FOLDER = Path("/dev/shm")
"""Where files are memory; where it is missing, or too small, there are no shared sums."""
TURNS = 2
"""A rank that writes the next gradients must not change those that others still read."""
NAME_BYTES = 256

Params = Sequence[torch.nn.Parameter]


class SharedSums:
    """Adds up the gradients of the same params on all ranks."""

    def __init__(self, params: Params, rank: int, ranks: int, name: str) -> None:
        """Map a file that has room for the gradients of all ranks."""
        self._params = list(params)
        size = _bytes_of(params, ranks)
        room = torch.from_file(name, shared=True, size=size, dtype=torch.uint8)
        self._arrived = torch.zeros(1)
        self._there = room[: 4 * TURNS * ranks * len(self._params)].view(torch.float32)
        self._there = self._there.view(TURNS, ranks, len(self._params))
        self._slots: list[_Slots] = []
        start = _aligned(self._there.nbytes)
        for dtype in _dtypes_of(params):
            made = _Slots(params, dtype, rank, ranks, room[start:])
            self._slots.append(made)
            start += _aligned(made.nbytes)
        self._rank, self._turn = rank, 0

    @classmethod
    def meet(cls, params: Params, rank: int, ranks: int) -> SharedSums | None:
        """Return the sums of these params, which all ranks ask for at once; None where there is no
        memory to share."""
        name = torch.zeros(NAME_BYTES, dtype=torch.uint8)
        path = _created(_bytes_of(params, ranks)) if rank == 0 else None
        if path is not None:
            said = str(path).encode()
            name[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
        dist.broadcast(name, 0)
        text = bytes(name.tolist()).rstrip(b"\0").decode()
        try:
            return cls(params, rank, ranks, text) if text else None
        finally:
            dist.barrier()
            if path is not None:
                path.unlink()  # what is mapped stays, and goes with the last rank

    @torch.no_grad()
    def add_up(self) -> None:
        """Give every rank the sums, in the order of the ranks.

        Edge cases: a param without a gradient on some ranks has the sum of the others; one without
            any has none.
        """
        turn, self._turn = self._turn, (self._turn + 1) % TURNS
        present = [float(param.grad is not None) for param in self._params]
        self._there[turn, self._rank] = torch.tensor(present)
        for slots in self._slots:
            slots.write(turn)
        dist.all_reduce(self._arrived)
        anywhere = self._there[turn].sum(0).tolist()
        for slots in self._slots:
            slots.read(turn, anywhere)


class _Slots:
    """The gradients of one dtype: a row a rank, and their sum."""

    def __init__(
        self, params: Params, dtype: torch.dtype, rank: int, ranks: int, room: torch.Tensor
    ) -> None:
        placed = [(place, param) for place, param in enumerate(params) if param.dtype is dtype]
        self._places = [place for place, _ in placed]
        self._params = [param for _, param in placed]
        sizes = [param.numel() for param in self._params]
        self.nbytes = TURNS * ranks * sum(sizes) * dtype.itemsize
        self._rows = room[: self.nbytes].view(dtype).view(TURNS, ranks, sum(sizes))
        self._sum = torch.empty(sum(sizes), dtype=dtype)
        self._mine = [self._shaped(rows[rank], sizes) for rows in self._rows]
        self._totals = self._shaped(self._sum, sizes)

    def _shaped(self, flat: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
        parts = zip(torch.split(flat, sizes), self._params, strict=True)
        return [part.view(param.shape) for part, param in parts]

    def write(self, turn: int) -> None:
        for target, param in zip(self._mine[turn], self._params, strict=True):
            if param.grad is None:
                target.zero_()
            else:
                target.copy_(param.grad)

    def read(self, turn: int, anywhere: Sequence[float]) -> None:
        torch.sum(self._rows[turn], 0, out=self._sum)
        for place, param, total in zip(self._places, self._params, self._totals, strict=True):
            param.grad = total if anywhere[place] else None


def _created(size: int) -> Path | None:
    """Return a new file of some size that is memory, None if there is no such."""
    with suppress(OSError):
        there = os.statvfs(FOLDER)
        if there.f_bavail * there.f_frsize > size:
            descriptor, name = tempfile.mkstemp(prefix="meadow-sums-", dir=FOLDER)
            os.ftruncate(descriptor, size)
            os.close(descriptor)
            return Path(name)
    return None


def _dtypes_of(params: Params) -> list[torch.dtype]:
    return list(dict.fromkeys(param.dtype for param in params))


def _bytes_of(params: Params, ranks: int) -> int:
    size = _aligned(4 * TURNS * ranks * len(params))
    for dtype in _dtypes_of(params):
        count = sum(param.numel() for param in params if param.dtype is dtype)
        size += _aligned(TURNS * ranks * count * dtype.itemsize)
    return size


def _aligned(size: int) -> int:
    return -(-size // 64) * 64
