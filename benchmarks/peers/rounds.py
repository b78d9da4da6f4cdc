"""What every peer's program measures, and the line it prints."""

from __future__ import annotations

import json
import os
import resource
import threading
import time

import psutil

__all__ = ["Rounds"]

SAMPLE_EVERY_S = 0.5


class Rounds:
    """The times of rounds, the accuracy after them, and the peak memory of all processes.

    A round lasts from `start` (or the end of the one before) to `end`; what happens between `end`
    and `start`, evaluation for instance, is not counted.
    Units: seconds; memory is resident memory in MB (10^6 bytes), summed over the processes, so
    pages that processes share count for each. It is sampled when there are several processes.
    """

    def __init__(self, *, several_processes: bool = False) -> None:
        self._process = psutil.Process(os.getpid())
        self._round_s: list[float] = []
        self._first_round_s = 0.0
        self._accuracy: list[float] = []
        self._peak_bytes = 0
        self._began_s = time.perf_counter()
        if several_processes:
            threading.Thread(target=self._sample_forever, daemon=True).start()

    def start(self) -> None:
        """Start a round."""
        self._began_s = time.perf_counter()

    def end(self) -> None:
        """End a round; the next one starts now unless `start` is called."""
        now_s = time.perf_counter()
        if self._first_round_s:
            self._round_s.append(now_s - self._began_s)
        else:
            self._first_round_s = time.time() - self._process.create_time()
        self._began_s = now_s

    def evaluated(self, accuracy: float) -> None:
        """Note the central accuracy, a fraction."""
        self._accuracy.append(accuracy)

    def report(self, **extra: object) -> None:
        """Print the outcome as a line of JSON, the last of the program's output."""
        own_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        outcome = {
            "round_s": [round(value, 6) for value in self._round_s],
            "first_round_s": round(self._first_round_s, 3),
            "accuracy": [round(value, 4) for value in self._accuracy],
            "peak_rss_mb": round(max(self._peak_bytes, own_bytes) / 1e6, 1),
        }
        print("\n" + json.dumps({**outcome, **extra}), flush=True)

    def _sample_forever(self) -> None:
        while True:
            self._peak_bytes = max(self._peak_bytes, _bytes_of_tree(self._process))
            time.sleep(SAMPLE_EVERY_S)


def _bytes_of_tree(root: psutil.Process) -> int:
    total = 0
    for process in [root, *root.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:  # it ended since it was listed
            continue
    return total
