"""`meadow client profile`: measures the phases of a local round, and advises how to shorten it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, supported_activities

from ...machine.accelerators import is_accelerator
from ...training.batches import in_pool
from ...training.step_timer import EnoughError, StopWatch
from .workbench import TryOut

__all__ = ["RoundProfile", "advice_on", "profile_round"]

STEPS_MAX = 100
"""The most steps that are recorded; larger traces are hard to use."""
WARM_STEPS = 3
PHASES = ("data", "forward", "backward", "optimizer")
EXCHANGES = ("gloo:", "nccl:")
MUCH = 0.25
"""The smallest share of the time for which advice is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundProfile:
    """The time of a local round, by phase.

    Attributes:
        device: the devices, as text for people.
        steps: the number of recorded steps.
        seconds: by phase; "communication" is also in the phases that it happens in.
        total_s: the time of all steps together.
        precision: the precision of the forward pass.
        loads_items: whether a Dataset's items are loaded one after the other.
        loader_processes: the number of additional processes that load them.
    """

    device: str
    steps: int
    seconds: Mapping[str, float]
    total_s: float
    precision: str
    loads_items: bool
    loader_processes: int

    def share(self, phase: str) -> float:
        """Return a phase's share of the time, from 0 to 1."""
        return self.seconds.get(phase, 0.0) / self.total_s if self.total_s else 0.0


def profile_round(bench: TryOut, trace: Path) -> RoundProfile:
    """Train a local round, record its first steps, and write them as a Chrome trace.

    Raises:
        DataError: the round cannot be trained here.
        OSError: the trace cannot be written.
    """
    training = bench.training()
    try:
        work = bench.round(training, key=time.time_ns())
        watch = StopWatch(training.device, warm_steps=WARM_STEPS, steps_max=STEPS_MAX)
        training.timer = watch
        activities = {ProfilerActivity.CPU}
        if is_accelerator(training.device):
            activities = supported_activities()  # type: ignore[no-untyped-call]
        with profile(activities=activities) as found, suppress(EnoughError):
            training.train(work)
        found.export_chrome_trace(str(trace))
        owned = bench.config.device.precision
        return RoundProfile(
            device=training.text,
            steps=watch.steps,
            seconds=_by_phase(watch, _exchanges(found)),
            total_s=watch.total_s,
            precision=bench.settings.precision if owned == "run" else owned,
            loads_items=in_pool(work.data) is None,
            loader_processes=training.use.loader_processes,
        )
    finally:
        training.close()


def advice_on(found: RoundProfile) -> Iterator[str]:
    """Yield advice for the owner or the run, for the largest share of the time first."""
    advice = {
        "data": _on_data(found),
        "communication": "the processes exchange much for what they compute: a larger "
        "training.batch_size or training.accumulation_steps, or fewer device.processes",
        "optimizer": "each step of the optimizer has little work before it: a larger "
        "training.batch_size",
        "other": "Python between the batches takes long for what they compute: a larger "
        "training.batch_size",
    }
    for phase in sorted(advice, key=found.share, reverse=True):
        if found.share(phase) > MUCH:
            yield f"{phase} takes {found.share(phase):.0%}: {advice[phase]}"
    if not found.device.startswith("cpu") and found.precision == "fp32":
        yield 'the accelerator computes in float32: device.precision = "bf16" is often twice as fast'


def _on_data(found: RoundProfile) -> str:
    if not found.loads_items:
        return "a larger training.batch_size gathers more rows at once"
    more = max(2, 2 * found.loader_processes)
    return f"items are loaded one by one; device.loader_processes = {more}"


def _by_phase(watch: StopWatch, exchanged_s: float) -> dict[str, float]:
    seconds = {phase: watch.seconds.get(phase, 0.0) for phase in PHASES}
    seconds["other"] = max(0.0, watch.total_s - sum(seconds.values()))
    seconds["communication"] = exchanged_s
    return seconds


def _exchanges(found: profile) -> float:
    """Return the seconds in which this process exchanged tensors while it was recorded."""
    events = list(found.events() or ())  # type: ignore[no-untyped-call]
    steps = [event for event in events if event.name == "meadow:optimizer"]
    since_us = steps[WARM_STEPS - 1].time_range.end if len(steps) > WARM_STEPS else 0.0
    spans = [e.time_range for e in events if e.name.startswith(EXCHANGES)]
    return _union_s([(span.start, span.end) for span in spans if span.start >= since_us])


def _union_s(spans_us: Sequence[tuple[float, float]]) -> float:
    """Return the length in seconds of the union of spans, given in microseconds."""
    total_us, reached_us = 0.0, float("-inf")
    for start_us, end_us in sorted(spans_us):
        total_us += max(0.0, end_us - max(start_us, reached_us))
        reached_us = max(reached_us, end_us)
    return total_us / 1e6
