"""Follows a run folder while the run goes on, and stores its rounds in experiment trackers.

The run folder is the truth, and a tracker its copy: a tracker that is slow or fails neither delays
nor stops the run, and gets what it missed when it is there again.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config.sections.tracking import OFF, TrackingConfig
from ..errors import MeadowError, TrackingError
from ..reports.page import write_report
from ..reports.run_record import UNDER_WAY, read_run, read_settings, round_values
from .mlflow_run import MLflowRun
from .packages import require
from .tracker import FILES, Scalars, Tracker
from .wandb_run import WandbRun

__all__ = ["RunFollower", "copy_run", "trackers_of"]

END_WAIT_S = 120.0
"""So long the end of a run waits for its trackers."""
ROW_BYTES_MAX = 1 << 20
ROUNDS_MAX = 500
"""So many rounds are read and stored at once."""
FAILURES_MAX = 10
REASON_CHARS_MAX = 500
ROWS = "metrics.jsonl"
REPORT = "report.html"
OWN = "tracking."
"""The settings of tracking itself are none of the experiment's."""


def trackers_of(config: TrackingConfig | None, folder: Path) -> list[Tracker]:
    """Return the trackers that a configuration names.

    Raises:
        ConfigError: a package is not installed.
    """
    made: list[Tracker] = []
    if config is None:
        return made
    if config.mlflow:
        made.append(MLflowRun(folder, uri=config.mlflow, experiment=config.experiment))
        require("mlflow", MLflowRun.name)
    if config.wandb != OFF:
        made.append(WandbRun(folder, mode=config.wandb, project=config.experiment))
        require("wandb", WandbRun.name)
    return made


def copy_run(folder: Path, config: TrackingConfig) -> list[Tracker]:
    """Copy a run that has ended to the trackers that a configuration names; return them.

    Raises:
        TrackingError: a tracker failed.
        ConfigError: it is no run folder, or a package is not installed.
    """
    status = read_run(folder).status
    failed: list[Mapping[str, Any]] = []
    trackers = trackers_of(config, folder)
    follower = RunFollower(folder, trackers, on_event=lambda kind, detail: failed.append(detail))
    follower.end("stopped" if status == UNDER_WAY else status)
    if failed:
        raise TrackingError(f"{folder}: {failed[0]['tracker']} failed: {failed[0]['reason']}")
    return trackers


class RunFollower:
    """Copies a run folder to trackers, each in a thread of its own.

    `on_event` is called in the threads that call this object's methods, not in its own.
    """

    def __init__(
        self,
        folder: Path,
        trackers: Sequence[Tracker],
        *,
        on_event: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._folder, self._on_event = folder, on_event
        self._copies = [_Copy(folder, tracker) for tracker in trackers]

    def row_added(self) -> None:
        """Let the trackers take the rows that metrics.jsonl has now."""
        for copy in self._copies:
            copy.wake()
        self._emit()

    def end(self, status: str) -> None:
        """Let the trackers take what is left, the files too, and wait for them.

        `status` is that of summary.json, which is written. A tracker that has not ended after
        `END_WAIT_S` is given up.
        """
        with suppress(MeadowError):  # without matplotlib, or before the first round
            write_report([self._folder], self._folder / REPORT)
        for copy in self._copies:
            copy.wake(status)
        until_s = time.monotonic() + END_WAIT_S
        for copy in self._copies:
            copy.join(max(0.0, until_s - time.monotonic()))
        self._emit()

    def _emit(self) -> None:
        for copy in self._copies:
            while copy.failures:
                reason = copy.failures.popleft()
                detail = {
                    "tracker": copy.tracker.name,
                    "reason": reason,
                    "remedy": f"meadow track {self._folder}",
                }
                self._on_event("tracking_failed", detail)


class _Copy(threading.Thread):
    """A tracker's thread. An error ends an attempt; the next row begins another."""

    def __init__(self, folder: Path, tracker: Tracker) -> None:
        super().__init__(daemon=True, name=f"tracking with {tracker.name}")
        self.tracker = tracker
        self.failures: deque[str] = deque(maxlen=FAILURES_MAX)
        self._folder = folder
        self._condition = threading.Condition()
        self._awake = True
        self._status = ""
        self._begun = False
        self._stored = 0
        self._offset = 0
        self.start()

    def wake(self, status: str = "") -> None:
        """Say that there are new rows, or with a status that the run has ended."""
        with self._condition:
            self._awake, self._status = True, status or self._status
            self._condition.notify()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end; adds a failure if it does not come in time."""
        super().join(timeout)
        if self.is_alive():
            self.failures.append(f"it has not taken everything in {END_WAIT_S:g} s")

    def run(self) -> None:
        """Store rows whenever there are new ones, until the run has ended."""
        status, failed = "", ""
        while not status:
            with self._condition:
                self._condition.wait_for(lambda: self._awake)
                self._awake, status = False, self._status
            try:
                self._store(status)
                failed = ""
            except Exception as error:  # whatever the package or its store may raise
                self._begun = False
                reason = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
                if reason != failed or status:
                    self.failures.append(reason)
                failed = reason

    def _store(self, status: str) -> None:
        if not self._begun:
            settings = read_settings(self._folder)
            settings = {key: text for key, text in settings.items() if not key.startswith(OWN)}
            self._stored, self._offset = self.tracker.begin(settings), 0
            self._begun = True
        while rounds := self._next():
            new = [each for each in rounds if each[0] > self._stored]
            if new:
                self.tracker.add(new)
                self._stored = new[-1][0]
        if status:
            there = [self._folder / name for name in FILES]
            self.tracker.end(status, [path for path in there if path.is_file()])

    def _next(self) -> list[Scalars]:
        """Return some rounds after those that were read; a row under way is left for later."""
        try:
            file = (self._folder / ROWS).open("rb")
        except FileNotFoundError:
            return []
        made: list[Scalars] = []
        with file:
            if file.seek(0, os.SEEK_END) < self._offset:  # a resumed run repeats rounds
                self._offset = 0
            file.seek(self._offset)
            while len(made) < ROUNDS_MAX:
                line = file.readline(ROW_BYTES_MAX)
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                made.append(_scalars(line))
        return made


def _scalars(line: bytes) -> Scalars:
    row = json.loads(line)
    values = {name.replace(".", "/", 1): value for name, value in round_values(row).items()}
    return int(row["round"]), {name: each for name, each in values.items() if math.isfinite(each)}
