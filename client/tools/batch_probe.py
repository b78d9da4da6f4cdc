"""Measures the largest batch that fits this device, and the time of a local round.

`python -m meadow.client.tools.batch_probe --dir DIR --app NAME` prints the result as JSON. It is a
separate process, as the system may kill it when memory runs out.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch.utils.data import DataLoader, Dataset, Subset

from ...errors import DataError, MeadowError
from ...machine.accelerators import free_bytes, is_accelerator
from ...machine.process_limits import keep_freed_memory
from ...training.batches import Batch, in_pool, samples_in
from ...training.device_meter import PeakMemory
from ...training.device_use import DeviceUse, choose_device
from ...training.loop.trainer import train
from ...training.micro_batch import ran_out_of_memory
from ...training.parallel.plan import ParallelPlan
from ...training.warm_module import WarmModule
from .workbench import TryOut

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["Fit", "Trial", "UntriedError", "fit_of", "largest_batch", "measure"]

MEMORY_FILLED_MAX = 0.8
"""The share of the free memory that may be used."""
TRIALS_S_MAX = 10.0
BATCH_MAX = 1 << 16
STEPS = 2
MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A few steps with batches of one size.

    Units: `memory_bytes` is the peak memory; `step_s` is the time of one step, in seconds. Both
        are 0 if the batch did not fit.
    """

    batch: int
    memory_bytes: int
    step_s: float
    fits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The resources that a round of an app needs on this device.

    Attributes:
        batch: the number of examples of the run's batch that this device computes.
        round_s: the estimated time of a round in seconds, from the time of a step.
        batch_max: the largest batch that should fit, by the trials.
        batch_tried: the largest batch that was tried.
    """

    batch: int
    memory_mb: int
    room_mb: int
    round_s: float
    batch_max: int
    batch_tried: int
    examples_a_second: float


class UntriedError(DataError):
    """The round can be trained, but not measured on one device."""


def main() -> None:
    """Measure, and print the result as JSON."""
    keep_freed_memory()
    parser = argparse.ArgumentParser(prog="meadow.client.tools.batch_probe")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--app", required=True)
    options = parser.parse_args()
    try:
        print(json.dumps(asdict(fit_of(TryOut.open(options.dir, options.app)))))
    except UntriedError as error:
        print(json.dumps({"untried": str(error)}))
    except MeadowError as error:
        print(json.dumps({"problem": str(error)}))


def fit_of(bench: TryOut) -> Fit:
    """Measure batches of growing size on one of the owner's devices.

    Raises:
        UntriedError: a single device's part of the round cannot be measured.
        MeadowError: the round cannot be trained here.
    """
    config = bench.config.device
    plan = ParallelPlan.of(replace(config, parallel="ddp") if config.parallel == "auto" else config)
    if plan.sharded or plan.kind == "pipeline":
        raise UntriedError(f"each process has a part of the model under {config.parallel!r}")
    one = config.parallel == "none" and config.gpus is None
    device = choose_device(config.device if one else plan.devices[0])
    parts = len(plan.devices)
    data, settings = bench.data(device).train, bench.settings
    if isinstance(data, DataLoader):
        raise UntriedError(
            "a DataLoader makes its own batches; return its Dataset to measure other sizes"
        )
    batch = -(-min(settings.batch_size, samples_in(data)) // parts)
    room = room_bytes(device, bench.config.device.memory_mb_max)
    trials = list(measure(_steps(bench, device, data), batch, room=room))
    first = trials[0]
    batches = -(-samples_in(data) // settings.batch_size)
    return Fit(
        batch=batch,
        memory_mb=first.memory_bytes // MB,
        room_mb=room // MB,
        round_s=first.step_s * batches * settings.epochs,
        batch_max=largest_batch(trials, room),
        batch_tried=trials[-1].batch,
        examples_a_second=first.batch * parts / first.step_s,
    )


def measure(steps: Callable[[int], Trial], batch: int, *, room: int) -> Iterator[Trial]:
    """Yield trials of this batch size, doubled as long as the next batch should fit into `room`
    bytes, or a trial took no more memory than the one before.

    Raises:
        Exception: that of the first trial; in later trials, running out of memory is not raised.
    """
    begun_at_s = time.monotonic()
    steps(batch)  # the first steps build what the later ones use
    tried = [steps(batch)]
    yield tried[0]
    while 2 * batch <= BATCH_MAX and time.monotonic() - begun_at_s < TRIALS_S_MAX:
        if _grew(tried) and 2 * batch > largest_batch(tried, room):
            return
        batch *= 2
        try:
            tried.append(steps(batch))
        except Exception as error:
            if not ran_out_of_memory(error):
                raise
            yield Trial(batch=batch, memory_bytes=0, step_s=0.0, fits=False)
            return
        yield tried[-1]


def _grew(tried: Sequence[Trial]) -> bool:
    """Return whether the last trial took more memory than the one before."""
    return len(tried) > 1 and tried[-1].memory_bytes > tried[-2].memory_bytes


def largest_batch(trials: Sequence[Trial], room: int) -> int:
    """Return the largest batch that should fit into `room` bytes, by linear extrapolation from the
    last two trials.

    Edge cases: the largest batch that did fit, if there is a single trial, memory did not grow, or
        the next batch did not fit.
    """
    last = [trial for trial in trials if trial.fits][-1]
    if len(trials) < 2 or not trials[-1].fits:
        return last.batch
    before = trials[-2]
    each_bytes = (last.memory_bytes - before.memory_bytes) / (last.batch - before.batch)
    if each_bytes <= 0:
        return last.batch
    return max(last.batch, last.batch + int((room - last.memory_bytes) / each_bytes))


def room_bytes(device: str, memory_mb_max: int | None) -> int:
    """Return the memory that training may use on a device, in bytes."""
    free = free_bytes(device) if is_accelerator(device) else None
    if free is not None:
        return int(free * MEMORY_FILLED_MAX)
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        there = next(line for line in lines if line.startswith("MemAvailable"))
        room = int(there.split()[1]) * 1024
    bound = int(room * MEMORY_FILLED_MAX)
    return bound if memory_mb_max is None else min(bound, memory_mb_max * MB)


def _steps(bench: TryOut, device: str, data: Data) -> Callable[[int], Trial]:
    """Return a function that trains a few steps with a batch size, cycling through the data."""
    config = bench.config.device
    use = DeviceUse.of(config, kind="none", device=device)
    module = WarmModule(bench.task, device, use.prepare)
    asked = replace(bench.settings, epochs=1, accumulation_steps=1)
    if config.precision != "run":
        asked = replace(asked, precision=config.precision)

    def steps(batch: int) -> Trial:
        places = torch.arange(batch * STEPS) % samples_in(data)
        settings, rows = replace(asked, batch_size=batch), _rows_of(data, places)
        peak, begun_at_s = PeakMemory(device), time.perf_counter()
        fresh = module.fresh(seed=settings.seed)
        train(bench.task, fresh, rows, settings, client=1, device=device, use=use)
        took_s = time.perf_counter() - begun_at_s
        return Trial(batch=batch, memory_bytes=peak.bytes(), step_s=took_s / STEPS)

    return steps


def _rows_of(data: Data, places: torch.Tensor) -> Data:
    if (pooled := in_pool(data)) is not None:
        (inputs, targets), within = pooled
        chosen = (places if within is None else within[places]).to(inputs.device)
        return inputs[chosen], targets[chosen]
    return Subset(cast(Dataset[Batch], data), places.tolist())


if __name__ == "__main__":
    main()
