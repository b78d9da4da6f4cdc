"""The agent's side of the training process: starts, instructs, monitors and kills it.

It is a separate process so that its failures - out of memory, a crash in a driver, an endless
loop - do not affect the connection, the owner's policy and the records of the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ...errors import MeadowError
from ...transport.fleet_pb2 import (
    AgentOrder,
    Empty,
    Inspection,
    TrainerMessage,
    TrainingDone,
    TrainingReady,
    TrainingStart,
    TrainingWork,
)
from ...transport.pipe import AsyncPipe

__all__ = ["LOG_BYTES_MAX", "ProcessDiedError", "TrainingProcess"]

LOG_BYTES_MAX = 10_000_000
EXIT_WAIT_S = 2.0
MODULE = "meadow.client.worker.training_process"


class ProcessDiedError(MeadowError):
    """The training process ended without an answer; the message says how."""


class TrainingProcess:
    """One running training process; `start` creates it, `stop` ends it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        pipe: AsyncPipe[TrainerMessage, AgentOrder],
        log: Path,
        memory_bytes_max: int | None,
    ) -> None:
        self._process = process
        self._pipe = pipe
        self._log = log
        self._memory_bytes_max = memory_bytes_max
        self._killed_because = ""
        self.ready = TrainingReady()

    @classmethod
    async def start(
        cls,
        start_message: TrainingStart,
        *,
        environment: Mapping[str, str],
        log: Path,
        memory_bytes_max: int | None,
        step: Callable[[], None],
    ) -> TrainingProcess:
        """Start a process and wait until it has loaded its app, or reports why it cannot.

        Raises:
            ProcessDiedError: the process died before that.
        """
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            if output.tell() > LOG_BYTES_MAX:
                output.truncate(0)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", MODULE, "--fd", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal must reach only the agent
            )
        started = cls(process, await AsyncPipe.open(ours, TrainerMessage), log, memory_bytes_max)
        try:
            await started._send(AgentOrder(start=start_message))
            started.ready = (await started._answer("ready", step)).ready
        except BaseException:
            await started.stop()
            raise
        return started

    async def execute(self, work: TrainingWork, step: Callable[[], None]) -> TrainingDone:
        """Execute one instruction in the process; `step` is called while it runs.

        Raises:
            ProcessDiedError: the process died.
        """
        await self._send(AgentOrder(work=work))
        return (await self._answer("done", step)).done

    async def inspect(self) -> Inspection:
        """Load and count the owner's data in the process.

        Raises:
            ProcessDiedError: the process died.
        """
        await self._send(AgentOrder(inspect=Empty()))
        return (await self._answer("inspection", lambda: None)).inspection

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.returncode is None

    def resident_bytes(self) -> int:
        """Return the memory of the process and its children; 0 if the system does not report it."""
        return _resident_pages(self._process.pid) * os.sysconf("SC_PAGE_SIZE")

    def outgrown(self) -> bool:
        """Return whether the process and its children hold more memory than allowed; False if the
        system does not report it."""
        if self._memory_bytes_max is None:
            return False
        used = self.resident_bytes()
        if used <= self._memory_bytes_max:
            return False
        bound_mb = self._memory_bytes_max // 1_000_000
        self._killed_because = (
            f"held {used // 1_000_000} MB, more than device.memory_mb_max = {bound_mb}"
        )
        return True

    async def stop(self) -> None:
        """End the process and its children; returns when it has ended."""
        self._pipe.close()
        self._kill()
        await self._process.wait()

    def _kill(self) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _send(self, message: AgentOrder) -> None:
        try:
            await self._pipe.send(message)
        except ConnectionError:
            await self._died()

    async def _answer(self, kind: str, step: Callable[[], None]) -> TrainerMessage:
        while (message := await self._pipe.receive()) is not None:
            if message.WhichOneof("kind") == kind:
                return message
            step()
            if self.outgrown():
                self._kill()
        await self._died()
        raise AssertionError("unreachable")

    async def _died(self) -> None:
        """Raise a `ProcessDiedError` that says how the process ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_WAIT_S):
                await self._process.wait()
        await self.stop()
        status = self._process.returncode or 0
        how = self._killed_because or f"ended with status {status}"
        if status < 0 and not self._killed_because:
            how = f"was killed by {signal.Signals(-status).name}"
        raise ProcessDiedError(f"the training process {how}; see {self._log}")


def _resident_pages(pid: int) -> int:
    """Return the resident pages of a process and its children; shared pages count for each."""
    folder = Path(f"/proc/{pid}")
    try:
        pages = int((folder / "statm").read_text().split()[1])
        texts = [path.read_text() for path in (folder / "task").glob("*/children")]
    except (OSError, IndexError):  # the process has ended
        return 0
    return pages + sum(_resident_pages(int(child)) for text in texts for child in text.split())
