"""Sums of gradients and of numbers over the ranks of one machine, in memory that they share.

On the CPU, exchanging gradients through sockets takes time of the cores that compute them. Here
each rank writes its gradients once and reads those of the others; only a notification goes through
a socket, so that a lost rank is noticed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import distributed as dist

from .local_barrier import LocalBarrier

__all__ = ["TOTALS_MAX", "SharedSums"]

FOLDER = Path("/dev/shm")
"""Where files are memory; where it is missing, or too small, there are no shared sums."""
TURNS = 2
"""A rank that writes the next gradients must not change those that others still read."""
NAME_BYTES = 256
GRADIENTS = "gradients"
TOTALS_MAX = 64
"""Numbers that are added up at once."""

Params = Sequence[torch.nn.Parameter]


class SharedSums:
    """Adds up the gradients of the same params on all ranks, and numbers beside them."""

    def __init__(
        self, params: Params, rank: int, ranks: int, path: Path, barrier: LocalBarrier
    ) -> None:
        """Map a file that has room for the gradients of all ranks, and meet at a barrier."""
        self._params, self._barrier = list(params), barrier
        size = _bytes_of(params, ranks)
        room = torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
        there = room[: TURNS * ranks * len(self._params)].numpy()
        self._there = there.reshape(TURNS, ranks, len(self._params))
        self._slots: list[_Slots] = []
        start = _aligned(there.nbytes)
        numbers = room[start:][: 8 * TURNS * ranks * TOTALS_MAX].numpy().view(np.float64)
        self._numbers = numbers.reshape(TURNS, ranks, TOTALS_MAX)
        start += _aligned(numbers.nbytes)
        for dtype in _dtypes_of(params):
            made = _Slots(params, dtype, rank, ranks, room[start:])
            self._slots.append(made)
            start += _aligned(made.nbytes)
        self._rank, self._turn = rank, 0

    @classmethod
    def meet(cls, params: Params, rank: int, ranks: int, *, timeout_s: float) -> SharedSums | None:
        """Return the sums of these params, which all ranks request at once; None where there is no
        shared memory.

        Raises:
            OSError: a rank did not come in time.
        """
        name = torch.zeros(NAME_BYTES, dtype=torch.uint8)
        made = _made(_bytes_of(params, ranks)) if rank == 0 else None
        if made is not None:
            encoded = str(made).encode()
            name[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        dist.broadcast(name, 0)
        text = bytes(name.tolist()).rstrip(b"\0").decode()
        if not text:
            return None
        try:
            barrier = LocalBarrier.meet(Path(text), rank, ranks, timeout_s=timeout_s)
            sums = cls(params, rank, ranks, Path(text, GRADIENTS), barrier)
            barrier.wait()
            return sums
        finally:
            if made is not None:
                shutil.rmtree(made)  # the mapping stays until the last rank ends

    @torch.no_grad()
    def add_up(self) -> None:
        """Give every rank the sums, in the order of the ranks.

        Edge cases: a param without a gradient on some ranks has the sum of the others; one without
            any has none.
        """
        turn = self._next_turn()
        self._there[turn, self._rank] = [param.grad is not None for param in self._params]
        for slots in self._slots:
            slots.write(turn)
        self._barrier.wait()
        anywhere = self._there[turn].any(0).tolist()
        for slots in self._slots:
            slots.read(turn, anywhere)

    def totals(self, values: Sequence[float]) -> list[float]:
        """Return the sums of numbers over the ranks, in their order; at most `TOTALS_MAX`."""
        turn = self._next_turn()
        self._numbers[turn, self._rank, : len(values)] = values
        self._barrier.wait()
        sums: list[float] = self._numbers[turn, :, : len(values)].sum(0).tolist()
        return sums

    def _next_turn(self) -> int:
        turn, self._turn = self._turn, (self._turn + 1) % TURNS
        return turn


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
        pairs = [*zip(self._mine[turn], self._params, strict=True)]
        full = [target for target, param in pairs if param.grad is not None]
        if full:
            torch._foreach_copy_(full, [param.grad for _, param in pairs if param.grad is not None])
        for target, param in pairs:
            if param.grad is None:
                target.zero_()

    def read(self, turn: int, anywhere: Sequence[bool]) -> None:
        torch.sum(self._rows[turn], 0, out=self._sum)
        for place, param, total in zip(self._places, self._params, self._totals, strict=True):
            param.grad = total if anywhere[place] else None


def _made(size: int) -> Path | None:
    """Return a new folder with a file of this size in shared memory; None if there is none."""
    with suppress(OSError):
        there = os.statvfs(FOLDER)
        if there.f_bavail * there.f_frsize > size:
            folder = Path(tempfile.mkdtemp(prefix="meadow-sums-", dir=FOLDER))
            (folder / GRADIENTS).touch()
            os.truncate(folder / GRADIENTS, size)
            return folder
    return None


def _dtypes_of(params: Params) -> list[torch.dtype]:
    return list(dict.fromkeys(param.dtype for param in params))


def _bytes_of(params: Params, ranks: int) -> int:
    size = _aligned(TURNS * ranks * len(params)) + _aligned(8 * TURNS * ranks * TOTALS_MAX)
    for dtype in _dtypes_of(params):
        count = sum(param.numel() for param in params if param.dtype is dtype)
        size += _aligned(TURNS * ranks * count * dtype.itemsize)
    return size


def _aligned(size: int) -> int:
    return -(-size // 64) * 64
