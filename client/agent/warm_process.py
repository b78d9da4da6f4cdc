"""The trainer that agents use: a training process that stays warm from round to round."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from ...config.sections.device import DeviceConfig
from ...errors import AppError
from ...transport.entries import pack_entries
from ...transport.fleet_pb2 import (
    Inspection,
    Instruction,
    TrainingDone,
    TrainingStart,
    TrainingWork,
)
from ..owner.owner import Owner
from .events import Event, Report
from .process import ProcessDiedError, TrainingProcess
from .training import APP_CRASHED, APP_NOT_LOADED, Trainer, failure

__all__ = ["ATTEMPTS_MAX", "WarmProcess", "training_environment"]

ATTEMPTS_MAX = 3
"""The most attempts at an instruction whose execution ends the process."""


class WarmProcess(Trainer):
    """Executes instructions in one process at a time, of one app with the owner's settings.

    The process is replaced when the app or the owner's settings change, when it dies (the
    instruction is then executed again), and when it uses more memory than the owner allows. Without work
    for `device.kept_warm_s` it is let go.
    """

    def __init__(
        self,
        owner: Owner,
        *,
        node_id: int,
        log: Path,
        report: Report = lambda event: None,
        alone: bool = False,
    ) -> None:
        """With `alone` the other hosts of the site are left to whoever leads them."""
        self._owner = owner
        self._alone = alone
        self._node_id = node_id
        self._log = log
        self._report = report
        self._one = asyncio.Lock()
        self._process: TrainingProcess | None = None
        self._idle: asyncio.Task[None] | None = None
        self._ending: asyncio.Future[None] | None = None
        self._started_as: tuple[bytes, Mapping[str, str], DeviceConfig, bool] | None = None

    async def execute(
        self,
        instruction: Instruction,
        blob_dir: Path,
        reply_dir: Path,
        state_dir: Path,
        state: bytes,
        step: Callable[[], None],
    ) -> TrainingDone:
        """As `Trainer.execute`; if the process dies, the instruction is executed again."""
        work = TrainingWork(
            instruction=instruction,
            blob_dir=str(blob_dir),
            reply_dir=str(reply_dir),
            state_dir=str(state_dir),
            state=state,
        )
        async with self._working():
            code, reason = APP_CRASHED, ""
            for _ in range(ATTEMPTS_MAX):
                shutil.rmtree(reply_dir, ignore_errors=True)  # of an earlier attempt
                try:
                    process = await self._running(instruction.app.name, step)
                    if process.ready.problem:
                        code, reason = APP_NOT_LOADED, process.ready.problem
                        await self._stop()
                        break
                    done = await process.execute(work, step)
                    if process.outgrown():
                        await self._stop()
                    return done
                except ProcessDiedError as error:
                    self._report(Event(kind="warning", text=str(error)))
                    reason = f"{ATTEMPTS_MAX} times in a row, {error}"
                    await self._stop()
                except BaseException:
                    await self._stop()
                    raise
        envelope = failure(instruction, code, reason)
        return TrainingDone(instruction_id=instruction.id, envelope=envelope, state=state)

    async def prepare(self, app: str) -> None:
        """Start the process of an app, so that its first instruction does not have to wait."""
        async with self._working():
            try:
                process = await self._running(app, lambda: None)
                if process.ready.problem:
                    await self._stop()
            except ProcessDiedError:
                await self._stop()

    async def inspect(self, app: str) -> tuple[str, Inspection]:
        """Return the device that an app would use, and the counts of the data that it loads.

        Raises:
            AppError: the app does not load.
            ProcessDiedError: its process died.
        """
        async with self._working():
            process = await self._running(app, lambda: None)
            if process.ready.problem:
                raise AppError(process.ready.problem)
            return process.ready.device, await process.inspect()

    def resident_bytes(self) -> int | None:
        """As `Trainer.resident_bytes`: that of the process and its children; shared pages count for each."""
        process = self._process
        return process.resident_bytes() if process is not None and process.alive else None

    async def close(self) -> None:
        """Stop the process."""
        self._stay()
        await self._stop()

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """One at a time; afterwards the process is let go, unless there is more to do in time."""
        async with self._one:
            self._stay()
            try:
                yield
            finally:
                if self._process is not None and self._started_as is not None:
                    idle_s = self._started_as[2].kept_warm_s
                    self._idle = asyncio.create_task(self._let_go(idle_s))

    def _stay(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    async def _let_go(self, idle_s: float) -> None:
        await asyncio.sleep(idle_s)
        async with self._one:
            await self._stop()

    async def _running(self, app: str, step: Callable[[], None]) -> TrainingProcess:
        """Return the process of this app and these settings; start it if necessary."""
        config = self._owner.config()
        folder, sha256 = self._owner.folder(app), self._owner.sha256(app)
        if folder is None or sha256 is None:
            raise AppError(f"app {app!r} is no longer installed here")
        node_config = dict(config.data.config)
        for key, value in (("site-index", config.data.index), ("site-count", config.data.count)):
            if value is not None:
                node_config[key] = value
        start_message = TrainingStart(
            app_dir=str(folder),
            sha256=sha256,
            node_config=pack_entries(node_config),
            device=config.device.device,
            node_id=self._node_id,
            client_dir=str(self._owner.directory.absolute()),
            alone=self._alone,
        )
        environment = training_environment(config.device)
        wanted = (
            start_message.SerializeToString(),
            environment,
            config.device,
            config.policy.report_device,
        )
        if self._process is not None and self._process.alive and wanted == self._started_as:
            return self._process
        await self._stop()
        memory_mb_max = config.device.memory_mb_max
        self._process = await TrainingProcess.start(
            start_message,
            environment=environment,
            log=self._log,
            memory_bytes_max=None if memory_mb_max is None else memory_mb_max * 1_000_000,
            step=step,
        )
        self._started_as = wanted
        return self._process

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._ending = asyncio.ensure_future(process.stop())
        if self._ending is not None:
            await asyncio.shield(self._ending)  # whoever is cancelled, it is ended


def training_environment(config: DeviceConfig) -> dict[str, str]:
    """Return the environment variables of training processes under the owner's settings."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **dict.fromkeys(threads, str(config.threads)),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }
