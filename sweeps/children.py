"""Runs commands side by side and reads their events; Ctrl-C ends them all in order.

Each child has a session of its own, so that a Ctrl-C reaches it only through this process: the
first lets it end its round, the second ends it at once, the third kills it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

__all__ = ["ChildCommand", "Children"]

LINE_BYTES_MAX = 1 << 20
"""A longer event is passed over."""
READ_BYTES = 1 << 16
END_S = 10.0
ERROR_CHARACTERS_MAX = 2_000
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

OnEvent = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCommand:
    """A command, called when its turn comes, and where its stderr goes."""

    name: str
    command: Callable[[], Sequence[str]]
    log: Path


@dataclass(slots=True, kw_only=True)
class _Child:
    job: ChildCommand
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    said: bytearray = field(default_factory=bytearray)
    error: str = ""


class Children:
    """Runs jobs, at most `at_once` at a time.

    `on_event` gets what they print, each JSON object with "event" as (name of the job, object);
    `on_end` the name, the exit code (a signal's number is negative) and the last error.
    Children hold the descriptors in `keep_open`, so that a lock lives as long as they do.
    """

    def __init__(
        self,
        *,
        at_once: int,
        on_event: OnEvent,
        on_end: Callable[[str, int, str], None],
        keep_open: Sequence[int] = (),
    ) -> None:
        self._at_once = at_once
        self._on_event = on_event
        self._on_end = on_end
        self._keep_open = tuple(keep_open)
        self._running: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self.stops = 0
        """How often a stop was requested."""

    def run(self, jobs: Sequence[ChildCommand]) -> None:
        """Run the jobs to their end, or until they are stopped."""
        waiting = deque(jobs)
        with self._selector, self._interruptible():
            try:
                while self._running or (waiting and not self.stops):
                    while waiting and not self.stops and len(self._running) < self._at_once:
                        self._start(waiting.popleft())
                    for key, _ in self._selector.select():
                        self._hear(self._running[key.fd])
            finally:
                self._end_all()

    def stop(self) -> None:
        """Let the children end their rounds; ask again to end them at once, and to kill them."""
        self.stops += 1
        for child in list(self._running.values()):
            self._signal(child, signal.SIGINT if self.stops < 3 else signal.SIGKILL)

    def _start(self, job: ChildCommand) -> None:
        environment = dict(os.environ)
        if self._at_once > 1:
            environment |= dict.fromkeys(THREADS, "1")
        job.log.parent.mkdir(parents=True, exist_ok=True)
        log = job.log.open("wb")
        process = subprocess.Popen(
            job.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
            pass_fds=self._keep_open,
        )
        assert process.stdout is not None
        child = _Child(job=job, process=process, log=log)
        self._running[process.stdout.fileno()] = child
        self._selector.register(process.stdout, selectors.EVENT_READ)
        if self.stops:  # asked between the question and the start
            self._signal(child, signal.SIGINT)

    def _hear(self, child: _Child) -> None:
        assert child.process.stdout is not None
        fd = child.process.stdout.fileno()
        data = os.read(fd, READ_BYTES)
        child.said += data
        *lines, rest = child.said.split(b"\n")
        child.said = bytearray() if len(rest) > LINE_BYTES_MAX else rest
        for line in lines:
            self._take(child, line)
        if not data:
            self._selector.unregister(child.process.stdout)
            del self._running[fd]
            self._end(child)

    def _take(self, child: _Child, line: bytes | bytearray) -> None:
        try:
            found = json.loads(line)
        except ValueError:
            return  # the app printed something
        if not isinstance(found, dict):
            return
        if "event" in found:
            self._on_event(child.job.name, found)
        elif isinstance(found.get("error"), str):
            child.error = found["error"]

    def _end(self, child: _Child) -> None:
        assert child.process.stdout is not None
        child.process.stdout.close()
        child.log.close()
        code = child.process.wait()
        said = child.job.log.read_bytes()[-ERROR_CHARACTERS_MAX:].decode(errors="replace").strip()
        if not said:
            child.job.log.unlink(missing_ok=True)
        if code and not child.error:
            child.error = said.rpartition("\n")[2] or "no word of why"
        self._on_end(child.job.name, code, child.error)

    def _end_all(self) -> None:
        """End what an error of ours left running; nothing is lost, the runs can go on."""
        for child in self._running.values():
            self._signal(child, signal.SIGINT)
            self._signal(child, signal.SIGINT)
        for child in self._running.values():
            try:
                child.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._signal(child, signal.SIGKILL)
                child.process.wait()
            child.log.close()

    def _signal(self, child: _Child, number: int) -> None:
        with suppress(ProcessLookupError):
            child.process.send_signal(number)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.stop()

        before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
