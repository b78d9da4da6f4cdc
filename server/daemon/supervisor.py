"""Run workers: one process per run, restarted from the journal when it dies."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import AppError, DamageError, MeadowError, StoreError
from ...transport import fleet_pb2 as pb
from ...transport.durable import write_file
from ...transport.pipe import AsyncPipe
from ..journal.journal import Journal
from ..journal.run_table import OVER, RunRow
from .agent_registry import AgentRegistry
from .background import Background
from .dispatch import Dispatcher
from .offer import OFFER_FOLDER, pack_offer
from .spool import Spool
from .threads import JournalThread, until_written

__all__ = ["DEATHS_MAX", "Supervisor"]

DEATHS_MAX = 5
"""A worker that dies this often without committing a round in between fails its run."""
STOP_WAIT_S = 15.0
STOPPED = "stopped by the administrator"
PENDING_MAX = 64
"""Bound of a worker's messages that are not yet in the journal."""
NODES_PAUSE_TIMES = 10.0
"""After sending the clients to a worker, a pause of so many times the time that it took."""
LOG = logging.getLogger("meadow.server")

Observe = Callable[[int, str, str], None]
WorkerPipe = AsyncPipe[pb.WorkerMessage, pb.DaemonMessage]


class Supervisor:
    """Keeps one worker process alive for every run that is not over."""

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        thread: JournalThread,
        dispatcher: Dispatcher,
        agents: AgentRegistry,
        spool: Spool,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._journal = journal
        self._thread = thread
        self._dispatcher = dispatcher
        self._agents = agents
        self._spool = spool
        self._clock = clock
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._pipes: dict[int, WorkerPipe] = {}
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping: set[int] = set()
        self._watchers: dict[int, set[asyncio.Event]] = {}
        self._ending: dict[int, str] = {}
        self.observers: list[Observe] = []
        """Called with every event of a run that was recorded: kind, and detail as JSON."""
        self._failures: dict[int, MeadowError] = {}
        """By run: the error that ends it, reported from outside its own task."""
        dispatcher.observer = self

    def run_dir(self, run_id: int) -> Path:
        """Return a run's folder."""
        return self._folder / "runs" / str(run_id)

    async def restore(self) -> list[int]:
        """Reopen the steps of all runs under way, before any agent connects.

        Returns the runs that are to begin afterwards.
        """
        for run in await self._thread(self._journal.runs.all, "arriving"):
            await asyncio.to_thread(shutil.rmtree, self.run_dir(run.id), ignore_errors=True)
            await self._status(run.id, "failed", "its app did not arrive; submit it again")
        for run in await self._thread(
            self._journal.runs.all, *OVER
        ):  # killed before it was forgotten
            if self._spool.outgoing(run.id).parent.exists():
                await asyncio.to_thread(self._spool.forget, run.id, (), everything=True)
        runs = await self._thread(self._journal.runs.all, "queued", "running")
        for run in runs:
            try:
                await self._offer(run)
                await self._dispatcher.restore(run)
            except StoreError as error:  # damage to this run's rows; the other runs go on
                self.fail(run.id, error)
        return [run.id for run in runs]

    def begin(self, run_id: int) -> None:
        """Start a run's worker and keep it alive."""
        self._tasks[run_id] = asyncio.create_task(self._supervise(run_id))

    async def go_on(self, run_id: int) -> None:
        """Resume an ended run after its last committed round."""
        if (task := self._tasks.get(run_id)) is not None:  # the ended run is being cleaned up
            await asyncio.wait([task])
        self._stopping.discard(run_id)
        self._failures.pop(run_id, None)
        (self.run_dir(run_id) / "summary.json").unlink(missing_ok=True)  # of the earlier end
        self.begin(run_id)

    async def _offer(self, run: RunRow) -> None:
        """Add a run's app to its instructions, for clients that do not have its version."""
        folder = self.run_dir(run.id) / OFFER_FOLDER
        with suppress(AppError):  # a damaged app is reported by the worker
            app = await asyncio.to_thread(pack_offer, self.run_dir(run.id) / "app", folder, run)
            self._dispatcher.offer(run.id, app, folder)

    async def stop(self, run_id: int) -> None:
        """Stop a run at once; its worker is killed if it has not ended after `STOP_WAIT_S` seconds.

        Raises:
            StoreError: the run has ended, but its end cannot be recorded, as the disk is full.
        """
        self._stopping.add(run_id)
        task = self._tasks.get(run_id)
        if task is None:  # unsupervised, though the journal has it as under way
            task = asyncio.create_task(self._end(run_id, "stopped", STOPPED))
            self._tasks[run_id] = task
        pipe = self._pipes.get(run_id)
        if pipe is not None:
            await _send(pipe, pb.DaemonMessage(stop=pb.Empty()))
        done, _ = await asyncio.wait([task], timeout=STOP_WAIT_S)
        if not done:
            self._kill(run_id)
            done, _ = await asyncio.wait([task], timeout=STOP_WAIT_S)
        if not done:
            raise StoreError(self.ending(run_id) or f"run {run_id} does not end")

    def ending(self, run_id: int) -> str | None:
        """Return a sentence for a run whose end cannot be recorded yet, None for any other run."""
        how = self._ending.get(run_id)
        return how and (
            f"run {run_id} has {how}, but the server cannot record that: its disk is full or "
            "fails; make room, and the server goes on by itself"
        )

    def fail(self, run_id: int, error: MeadowError) -> None:
        """End a run that cannot go on."""
        self._failures.setdefault(run_id, error)
        self._kill(run_id)

    async def emit(self, run_id: int, kind: str, detail: Mapping[str, Any]) -> None:
        """Record an event of a run."""
        await self.record(run_id, kind, json.dumps(detail))

    async def close(self) -> None:
        """End all workers; their runs are resumed when the daemon starts again."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _kill(self, run_id: int) -> None:
        process = self._processes.get(run_id)
        if process is not None and process.returncode is None:
            process.kill()

    # ------------------------------------------------------------------ events for people

    def watch(self, run_id: int) -> asyncio.Event:
        """Return an event that is set whenever an event of the run is recorded."""
        event = asyncio.Event()
        self._watchers.setdefault(run_id, set()).add(event)
        return event

    def unwatch(self, run_id: int, event: asyncio.Event) -> None:
        """Forget a watcher."""
        self._watchers.get(run_id, set()).discard(event)

    async def record(self, run_id: int, kind: str, detail: str) -> None:
        """Record an event of a run and wake its watchers."""
        round_ = json.loads(detail).get("round", 0) if kind == "round_committed" else 0
        await self._thread.patiently(
            self._journal.events.record, run_id, kind, detail, now_s=self._clock(), round=round_
        )
        self._observe(run_id, kind, detail)
        self._wake(run_id)

    async def _status(self, run_id: int, status: str, cause: str = "") -> None:
        now_s = self._clock()
        end_s = now_s if status in ("finished", "stopped", "failed") else None
        detail = json.dumps({"status": status, "cause": cause})

        def write() -> None:
            self._journal.runs.status(run_id, status, cause=cause, now_s=end_s)
            self._journal.events.record(run_id, "status", detail, now_s=now_s)

        await self._thread(write)
        self._observe(run_id, "status", detail)
        self._wake(run_id)

    def _observe(self, run_id: int, kind: str, detail: str) -> None:
        for observe in self.observers:
            observe(run_id, kind, detail)

    def _wake(self, run_id: int) -> None:
        for event in self._watchers.get(run_id, ()):
            event.set()

    # ------------------------------------------------------------------ one run

    async def _supervise(self, run_id: int) -> None:
        try:
            status, cause = await self._keep_alive(run_id)
        except DamageError as error:  # the damaged rows are deleted when the round is repeated
            hint = f"`meadow run resume {run_id}` repeats the round"
            status, cause = "failed", f"{error}; {hint}"
        except MeadowError as error:
            status, cause = "failed", str(error)
        except OSError as error:
            status, cause = "failed", f"the server's disk or its processes: {error}"
        except Exception as error:  # a bug of ours must end this run, not hang it
            LOG.exception("run %d", run_id)
            status, cause = "failed", f"internal error: {type(error).__name__}: {error}"
        self._kill(run_id)
        await self._end(run_id, status, cause)

    async def _end(self, run_id: int, status: str, cause: str) -> None:
        """Record the end of a run, retried while the disk is full."""

        def waits() -> None:
            self._ending[run_id] = {"stopped": "been stopped"}.get(status, status)

        try:
            await until_written(lambda: self._conclude(run_id, status, cause), waits)
            self._ending.pop(run_id, None)
            await self._dispatcher.forget(run_id)
        except MeadowError:
            LOG.exception("run %d has %s (%s), which cannot be recorded", run_id, status, cause)
        finally:
            self._ending.pop(run_id, None)
            self._failures.pop(run_id, None)
            self._tasks.pop(run_id, None)

    async def _keep_alive(self, run_id: int) -> tuple[str, str]:
        """Start workers until the run is over; return its status and the cause."""
        deaths = 0
        if (run := await self._thread(self._journal.runs.get, run_id)) is not None:
            await self._offer(run)
        await until_written(lambda: self._status(run_id, "running"))
        while True:
            before = await self._round(run_id)
            finished, how = await self._one_worker(run_id)
            if finished is not None:
                return finished.status, finished.cause
            if run_id in self._stopping:
                return "stopped", STOPPED
            deaths = 1 if await self._round(run_id) > before else deaths + 1
            detail = {"how": how, "deaths": deaths, "log": f"runs/{run_id}/worker.log"}
            await self.record(run_id, "worker_died", json.dumps(detail))
            if deaths >= DEATHS_MAX:
                return "failed", (
                    f"the run worker died {deaths} times in a row ({how}); "
                    f"its output is in runs/{run_id}/worker.log on the server"
                )

    async def _conclude(self, run_id: int, status: str, cause: str) -> None:
        """Record how a run ended, with a summary if its worker was killed before it wrote one."""
        path = self.run_dir(run_id) / "summary.json"
        if not path.exists():
            summary = {"status": status, "cause": cause, "rounds": await self._round(run_id)}
            text = json.dumps(summary, indent=1).encode()
            await asyncio.to_thread(write_file, path, text)
        await self._status(run_id, status, cause)

    async def _round(self, run_id: int) -> int:
        run = await self._thread(self._journal.runs.get, run_id)
        return run.round if run else 0

    async def _one_worker(self, run_id: int) -> tuple[pb.Finished | None, str]:
        """Run one worker process to its end; return its last message and how it ended."""
        self._raise_failure(run_id)
        await self._dispatcher.tidy(run_id)
        ours, theirs = socket.socketpair()
        with theirs, (self.run_dir(run_id) / "worker.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "meadow.server.worker.worker", str(theirs.fileno()),
                pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, env=_environment(),
            )  # fmt: skip
        pipe: WorkerPipe = await AsyncPipe.open(ours, pb.WorkerMessage)
        self._pipes[run_id], self._processes[run_id] = pipe, process
        finished, ready = None, asyncio.get_running_loop().create_future()
        nodes = asyncio.create_task(self._send_nodes(pipe, ready))
        try:
            await self._greet(run_id, pipe)
            finished = await self._pump(run_id, pipe, ready)
        except StoreError:  # the next worker would fail in the same way
            self._kill(run_id)
            raise
        except MeadowError as error:
            await self.record(run_id, "worker_error", json.dumps({"error": str(error)}))
            self._kill(run_id)
        finally:
            nodes.cancel()
            self._dispatcher.detach(run_id)
            self._pipes.pop(run_id, None)
            pipe.close()
            code = await _reap(process)
        self._raise_failure(run_id)
        return finished, _how(code)

    def _raise_failure(self, run_id: int) -> None:
        if (error := self._failures.get(run_id)) is not None:
            raise error

    async def _greet(self, run_id: int, pipe: WorkerPipe) -> None:
        run = await self._thread(self._journal.runs.get, run_id)
        assert run is not None
        folder = self.run_dir(run_id)
        cohorts = await self._thread(self._journal.steps.cohorts, run_id)
        start = pb.WorkerStart(
            run_id=run_id,
            app_dir=str(folder / "app"),
            sha256=run.sha256,
            run_dir=str(folder),
            spool_dir=str(self._spool.outgoing(run_id)),
            settings=json.loads(run.settings),
            cohorts=[
                pb.Cohort(group_id=group, node_ids=nodes, relays=map(self._agents.relay_of, nodes))
                for group, nodes in cohorts.items()
            ],
            slow_lines=[
                pb.SlowLine(node_id=node, bytes_per_s=rate)
                for node, rate in self._dispatcher.lines.slow.items()
            ],
        )
        await _send(pipe, pb.DaemonMessage(start=start))
        if run_id in self._stopping:
            await _send(pipe, pb.DaemonMessage(stop=pb.Empty()))
        self._dispatcher.attach(run_id, lambda message: _send(pipe, message))

    async def _send_nodes(self, pipe: WorkerPipe, ready: asyncio.Future[pb.WorkerReady]) -> None:
        """Send a worker the available clients with its tags, whenever they change.

        At most a part of the time: after a restart thousands of clients return one by one.
        """
        loop = asyncio.get_running_loop()
        tags, changed = (await ready).tags, asyncio.Event()
        changed.set()
        unsubscribe = self._agents.on_change(changed.set)
        try:
            while True:
                await changed.wait()
                changed.clear()
                begin_s = loop.time()
                available = self._agents.available(tags)
                nodes = pb.Nodes(
                    node_ids=available,
                    names=self._agents.names_of(available),
                    relays=map(self._agents.relay_of, available),
                )
                await _send(pipe, pb.DaemonMessage(nodes=nodes))
                await asyncio.sleep(NODES_PAUSE_TIMES * (loop.time() - begin_s))
        finally:
            unsubscribe()

    async def _pump(
        self, run_id: int, pipe: WorkerPipe, ready: asyncio.Future[pb.WorkerReady]
    ) -> pb.Finished | None:
        notes = Background(PENDING_MAX)
        while (message := await pipe.receive()) is not None:
            kind = message.WhichOneof("kind")
            if kind == "finished":
                await notes.finish()
                return message.finished
            if kind == "step":
                await self._dispatcher.open_step(run_id, message.step)
            elif kind == "note":
                await notes.begin(self.record(run_id, message.note.kind, message.note.json))
                if message.note.kind == "update_refused":
                    detail = json.loads(message.note.json)
                    self._dispatcher.refused(run_id, str(detail["round"]), detail["client"])
            elif kind == "ready":
                body = message.ready.SerializeToString()
                rounds = message.ready.rounds
                if not ready.done():
                    ready.set_result(message.ready)
                await self._thread.patiently(
                    self._journal.runs.ready, run_id, rounds=rounds, ready=body
                )
                await self.record(run_id, "ready", json.dumps({"rounds": rounds}))
            elif kind == "forget":
                group_id, blobs = message.forget.group_id, message.forget.blob_ids
                await notes.begin(self._dispatcher.forget(run_id, group_id, blobs))
        await notes.finish()
        return None


async def _send(pipe: WorkerPipe, message: pb.DaemonMessage) -> None:
    with suppress(ConnectionError):  # a dead worker is handled by the reader
        await pipe.send(message)


async def _reap(process: asyncio.subprocess.Process) -> int:
    """Wait for a worker whose pipe is closed; kill it if it does not end by itself."""
    try:
        async with asyncio.timeout(STOP_WAIT_S):
            return await process.wait()
    except TimeoutError:
        process.kill()
        return await process.wait()


def _environment() -> dict[str, str]:
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**os.environ, **single, "FLWR_TELEMETRY_ENABLED": "0"}


def _how(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
