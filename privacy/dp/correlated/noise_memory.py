"""The noise of a round that depends on earlier rounds, from the seeds of all of them.

A run's state stores only the seeds of the noise, 32 bytes per round. So the state is small, a
checkpoint has it with the params that it belongs to, and a continued run has bit for bit the
noise of an uninterrupted one. The values made from the seeds are cached here; only a run that
continues after an interruption computes them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....strategies.algorithms.algorithm import Params
from ..mechanisms.noise import SEED_BYTES, generator_from
from ..mechanisms.parts import BLOCK, PART, work_through
from .correlation import Correlation, Terms

__all__ = ["NoiseMemory", "NoisePast", "seeds_in", "seeds_slot"]

Row = NDArray[np.float32]
Reals = NDArray[np.float64]
SEEDS = "seeds"


class NoiseMemory:
    """Makes rows of noise; its cache affects only the time that this takes."""

    def __init__(self, correlation: Correlation) -> None:
        self._correlation = correlation
        self._size = 0
        self._seeds: tuple[bytes, ...] = ()
        self._stored: dict[int, Row] = {}

    def row(self, seeds: tuple[bytes, ...], seed: bytes, size: int) -> Row:
        """Return `size` values for the round after those of `seeds`, from normals of `seed`.

        Guarantees: depends on the arguments alone. float32 rounds the noise, not the data.
        """
        if (seeds, size) != (self._seeds, self._size):
            begins = self._correlation.begins(len(seeds) + 1)
            self._seeds, self._size, self._stored = seeds[: begins - 1], size, {}
            for earlier in seeds[begins - 1 :]:
                self._advance(earlier)
        return self._advance(seed)

    def _advance(self, seed: bytes) -> Row:
        number = len(self._seeds) + 1
        step = self._correlation.step(number)
        value = np.empty(self._size, np.float32)
        released = np.empty(self._size, np.float32) if step.beside else value

        def fill(part: int) -> None:
            generator = generator_from(seed, part)
            drawn, scratch = np.empty(BLOCK), np.empty(BLOCK)
            stop = min((part + 1) * PART, self._size)
            for start in range(part * PART, stop, BLOCK):
                here = slice(start, min(start + BLOCK, stop))
                fresh, product = (each[: here.stop - start] for each in (drawn, scratch))
                generator.standard_normal(out=fresh)
                fresh *= step.fresh
                self._add(fresh, step.made_of, here, product)
                value[here] = fresh
                if step.beside:
                    self._add(fresh, step.beside, here, product)
                    released[here] = fresh

        work_through(-(-self._size // PART), fill, values=self._size)
        rows = {**self._stored, number: value}
        self._stored = {each: rows[each] for each in step.stored}
        self._seeds = (*self._seeds, seed)
        return released

    def _add(self, values: Reals, terms: Terms, here: slice, product: Reals) -> None:
        for number, factor in terms:
            np.multiply(self._stored[number][here], factor, out=product)
            values += product


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisePast:
    """The noise of the rounds before this one."""

    seeds: tuple[bytes, ...]
    memory: NoiseMemory

    @contextmanager
    def rows(self, seed: bytes, size: int) -> Iterator[Iterator[Row]]:
        """Yield this round's noise, from standard normals of `seed`, in one piece; as `normals`."""
        yield iter([self.memory.row(self.seeds, seed, size)])


def seeds_slot(seeds: Sequence[bytes]) -> Params:
    """Return the seeds of all rounds so far as arrays, for a checkpoint."""
    flat = np.frombuffer(b"".join(seeds), np.uint8)
    return {SEEDS: flat.reshape(len(seeds), SEED_BYTES)}


def seeds_in(slot: Params) -> tuple[bytes, ...]:
    """Return the seeds that `seeds_slot` was given."""
    return tuple(row.tobytes() for row in slot[SEEDS])
