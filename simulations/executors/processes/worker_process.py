"""A worker process as the run sees it: started, asked, watched, killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from .group_files import WorkerSettings
from .group_round import GroupTask

__all__ = ["WorkerProcess"]

MODULE = "meadow.simulations.executors.processes.worker"
EXIT_WAIT_S = 2.0
KILLED_WAIT_S = 10.0
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class WorkerProcess:
    """One process with one computing thread; it reports when it is ready."""

    def __init__(self, settings: WorkerSettings) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, "--fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env={
                    **os.environ,
                    **dict.fromkeys(THREADS, "1"),
                    "FLWR_TELEMETRY_ENABLED": "0",
                },
                stdin=subprocess.DEVNULL,
                stdout=2,  # what apps print must not get between a command's output
                start_new_session=True,  # a Ctrl-C in the terminal is for the run alone
            )
        self.connection = Connection(ours.detach())
        self.task: GroupTask | None = None
        self.ready = False
        self._send(settings.to_json())

    @property
    def pid(self) -> int:
        return self._process.pid

    def submit(self, task: GroupTask) -> None:
        """Start a task; `receive` reports its end, or that of the process."""
        self.task = task
        folders = {"shared": task.round.shared, "inbox": task.inbox, "outbox": task.outbox}
        self._send({name: str(path) for name, path in folders.items()})

    def receive(self) -> dict[str, Any] | None:
        """Return the next answer, None if the process is gone."""
        try:
            answer: dict[str, Any] = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            return None
        return answer

    def is_gone(self) -> bool:
        """Whether the process has ended, or is nobody's: then nothing more will come."""
        return self._process.poll() is not None and not self.connection.poll()

    def stop(self) -> str:
        """End the process with everything that it started; return how it ended."""
        self.connection.close()  # by which it ends itself
        try:
            self._process.wait(timeout=EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=KILLED_WAIT_S)
        status = self._process.returncode
        if status is None:
            return "does not end"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    def _send(self, order: dict[str, Any]) -> None:
        with suppress(OSError):  # it is gone, which `receive` will say
            self.connection.send_bytes(json.dumps(order).encode())
