"""What a round takes of a device: time, memory and utilisation."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from ..machine.accelerators import free_bytes, is_accelerator

__all__ = ["DeviceMeter", "PeakMemory"]

SAMPLE_S = 0.5


class PeakMemory:
    """The most memory held since it was begun: of an accelerator, or of this process on the CPU and
    where torch does not know the accelerator's memory.

    Edge cases: where the system does not let a process forget its peak, the CPU's is that since
        the process began.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._own_memory = is_accelerator(device) and free_bytes(device) is not None
        if self._own_memory:
            torch.accelerator.reset_peak_memory_stats(self._device)
            return
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # forgets the peak: man 5 proc

    def bytes(self) -> int:
        """Return the peak so far."""
        if self._own_memory:
            return torch.accelerator.max_memory_reserved(self._device)
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
        except (OSError, StopIteration):
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class DeviceMeter:
    """Measures rounds on a device; `utilisation` asks how busy it is now, in percent."""

    def __init__(
        self, device: str, *, utilisation: Callable[[], float | None] | None = None
    ) -> None:
        self._device = device
        self._utilisation = utilisation or (lambda: _utilisation_of(device))
        self._took_s = 0.0
        self._peak_bytes = 0
        self._busy: list[float] = []

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure what is done in the block."""
        self._busy, over = [], threading.Event()
        peak, begun_at_s = PeakMemory(self._device), time.perf_counter()
        sampler = None
        if self._sample():
            sampler = threading.Thread(target=self._watch, args=(over,), daemon=True)
            sampler.start()
        try:
            yield
        finally:
            over.set()
            if sampler is not None:
                sampler.join()
            self._took_s = time.perf_counter() - begun_at_s
            self._peak_bytes = peak.bytes()

    def metrics(self, samples: int) -> dict[str, float]:
        """Return the last block's figures; `samples` is how many examples it trained on.

        Units: examples a second, megabytes, and percent; the last where the device reports it.
        """
        made = {
            "samples-per-s": samples / max(self._took_s, 1e-9),
            "peak-memory-mb": self._peak_bytes / 1e6,
        }
        if self._busy:
            made["utilisation"] = sum(self._busy) / len(self._busy)
        return made

    def _sample(self) -> bool:
        busy = self._utilisation()
        if busy is not None:
            self._busy.append(busy)
        return busy is not None

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(SAMPLE_S):
            self._sample()


def _utilisation_of(device: str) -> float | None:
    """Return how busy a GPU is, None where there is none or nobody says: torch asks for CUDA's and
    ROCm's alone, which are both "cuda" to it."""
    if torch.device(device).type != "cuda":
        return None
    try:
        return float(torch.cuda.utilization(device))
    except (ModuleNotFoundError, RuntimeError):  # pynvml is not installed, or finds no driver
        return None
