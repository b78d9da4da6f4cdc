"""The phases of a local round, and the time that each takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ParamSpec, Protocol, TypeVar

import torch

from ..errors import MeadowError
from ..machine.accelerators import is_accelerator

__all__ = ["EnoughError", "StepTimer", "StopWatch", "Unwatched"]

P = ParamSpec("P")
T = TypeVar("T")
OPTIMIZER = "optimizer"


class EnoughError(MeadowError):
    """The requested number of steps has been measured."""


class StepTimer(Protocol):
    """Receives every phase of a round."""

    def of(self, name: str) -> AbstractContextManager[None]:
        """Return the context that a phase runs in; phases may be nested."""

    def around(self, name: str, work: Callable[P, T]) -> Callable[P, T]:
        """Return a function whose calls of `work` are a phase."""


class Unwatched:
    """Measures nothing: the default."""

    _nothing = nullcontext()

    def of(self, name: str) -> AbstractContextManager[None]:
        """As `StepTimer.of`."""
        return self._nothing

    def around(self, name: str, work: Callable[P, T]) -> Callable[P, T]:
        """As `StepTimer.around`: the work itself."""
        return work


class StopWatch:
    """Adds up the time of phases, each without those within it, and marks them in a trace.

    Attributes:
        seconds: by phase, since the first steps were over.
        steps: how many steps of the optimizer there were since then.
        total_s: how long they took.
    """

    def __init__(self, device: str, *, warm_steps: int, steps_max: int) -> None:
        """Skip `warm_steps` steps and measure `steps_max`; the next one raises EnoughError.

        A round with fewer steps is measured from its beginning.
        """
        self._accelerator = torch.device(device) if is_accelerator(device) else None
        self._warm_steps, self._steps_max = warm_steps, steps_max
        self._within: list[float] = []
        self._steps = 0
        self._laps = [_Lap(), _Lap()]

    @property
    def steps(self) -> int:
        """Steps of the optimizer, since the first ones were over."""
        return self._steps - self._warm_steps if self._steps > self._warm_steps else self._steps

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase, since the first steps were over."""
        return self._lap.seconds

    @property
    def total_s(self) -> float:
        """Seconds that the counted steps took."""
        return self._lap.ended_at_s - self._lap.begun_at_s

    @property
    def _lap(self) -> _Lap:
        return self._laps[self._steps > self._warm_steps]

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """As `StepTimer.of`; it waits for the accelerator, which works on while Python goes ahead."""
        if self._steps == self._warm_steps + self._steps_max and name != OPTIMIZER:
            raise EnoughError(f"{self._steps_max} steps were watched")
        begun_at_s = time.perf_counter()
        with torch.profiler.record_function(f"meadow:{name}"):
            self._within.append(0.0)
            yield
            if self._accelerator is not None:
                torch.accelerator.synchronize(self._accelerator)
        ended_at_s = time.perf_counter()
        took_s = ended_at_s - begun_at_s
        lap = self._laps[self._steps >= self._warm_steps]
        lap.add(name, took_s - self._within.pop(), begun_at_s, ended_at_s)
        if self._within:
            self._within[-1] += took_s
        self._steps += name == OPTIMIZER

    def around(self, name: str, work: Callable[P, T]) -> Callable[P, T]:
        """As `StepTimer.around`."""

        def watched(*arguments: P.args, **named: P.kwargs) -> T:
            with self.of(name):
                return work(*arguments, **named)

        return watched


class _Lap:
    """Times of phases, with their beginnings and ends."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.begun_at_s = self.ended_at_s = 0.0

    def add(self, name: str, own_s: float, begun_at_s: float, ended_at_s: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + own_s
        self.begun_at_s = min(self.begun_at_s or begun_at_s, begun_at_s)
        self.ended_at_s = ended_at_s
