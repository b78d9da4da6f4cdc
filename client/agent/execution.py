"""Executes one instruction: look up its recorded reply, check the policy, count, fetch, train."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ...config.client_config import BLOBS_KEPT, PolicyConfig
from ...errors import (
    NOTHING_TO_EVALUATE,
    AppError,
    ConfigError,
    MeadowError,
    ProtocolError,
    RefusedError,
    StoreError,
    UnreachableError,
)
from ...privacy.secagg.terms.terms import is_talk
from ...transport.blobs import blob_path, blobs_of, check_blob_id
from ...transport.fields import check_fields
from ...transport.file_pool import FilePool
from ...transport.fleet_pb2 import Blob, Envelope, Instruction, Reply, TrainingDone
from ...transport.spans import phase
from ..owner.announcements import charged_noise, charged_steps, hides_from_server
from ..owner.budget import check_budget, round_epsilons
from ..owner.ledger import Ledger, content_of
from ..owner.offers import Offers
from ..owner.owner import Owner
from ..owner.policy import NotInstalledError, check, is_training
from ..owner.sent_log import Outgoing, SentFor
from ..owner.update_norm import update_norm
from .events import Event, Report
from .rpc_errors import GoneError
from .state import AgentState, Recorded
from .training import APP_NOT_LOADED, APP_RAISED, REASON_CHARS_MAX, Trainer, failure
from .uplink import Uplink

__all__ = ["Execution", "label_of"]

HIDDEN_REASON = "this client has no result; its owner's log says why"
CORRUPT_MAX = 3
T = TypeVar("T")


class Execution:
    """Turns instructions into replies, one at a time."""

    def __init__(
        self,
        *,
        owner: Owner,
        ledger: Ledger,
        state: AgentState,
        trainer: Trainer,
        uplink: Uplink,
        blob_dir: Path,
        report: Report,
        clock: Callable[[], float] = time.time,
        relays: bool = False,
    ) -> None:
        """A relay's execution asks no owner: each client below has one."""
        self._relays = relays
        self._owner = owner
        self._ledger = ledger
        self._state = state
        self._trainer = trainer
        self._uplink = uplink
        self._blob_dir = blob_dir
        self._report = report
        self._clock = clock
        self._offers = Offers(owner.directory)
        self._verified: dict[str, tuple[int, int]] = {}
        self.training = False
        """Whether the trainer is executing an instruction."""

    async def perform(self, instruction: Instruction, step: Callable[[], None]) -> Outgoing | None:
        """Return the answer to an instruction, None if the server no longer wants one.

        Guarantees: an instruction whose reply was recorded is not executed again, even after the
            reply was deleted; one that trains is counted in the ledger before it is executed.
            An instruction whose execution raises any exception is answered with an error.
        """
        try:
            check_fields(instruction)
            recorded = self._state.recorded(instruction.id)
            return (recorded or await self._execute(instruction, step)).answer
        except NotInstalledError as error:
            return await self._offered(instruction, str(error), step)
        except RefusedError as error:
            return await self._refuse(instruction, str(error))
        except GoneError:
            return None
        except Exception as error:  # the agent must survive any instruction
            ours = isinstance(error, MeadowError | OSError)
            reason = str(error) if ours else f"it raised {type(error).__name__}: {error}"
            text = f"{label_of(instruction.envelope)}: {reason[:REASON_CHARS_MAX]}"
            self._report(Event(kind="failed", text=text, detail={"run": instruction.run_id}))
            envelope = _for_server(instruction, failure(instruction, APP_NOT_LOADED, reason))
            reply = Reply(instruction_id=instruction.id, envelope=envelope)
            return Outgoing(reply, SentFor.of(instruction))

    async def _offered(
        self, instruction: Instruction, reason: str, step: Callable[[], None]
    ) -> Outgoing | None:
        """Fetch an offered app for the owner's approval; continue if its author is trusted."""
        app = instruction.app
        if not app.HasField("archive"):
            return await self._refuse(instruction, reason)
        try:
            archive = None
            if await asyncio.to_thread(self._offers.wants, app):
                archive = await self._download(app.archive, self._offers.incoming)
            await asyncio.to_thread(
                self._offers.receive, app, archive, run_id=instruction.run_id, now_s=self._clock()
            )
            if self._owner.sha256(app.name) != app.sha256.removeprefix("sha256:"):
                raise RefusedError("the installed version is another one than offered")
        except GoneError:
            return None
        except (MeadowError, OSError) as error:
            return await self._refuse(instruction, f"{reason}; {error}")
        text = f"app {app.name} sha256:{app.sha256[:12]}... of a trusted author is installed"
        self._report(Event(kind="warning", text=text, detail={"run": instruction.run_id}))
        return await self.perform(instruction, step)

    async def _execute(self, instruction: Instruction, step: Callable[[], None]) -> Recorded:
        policy = PolicyConfig() if self._relays else self._allow(instruction)
        about = SentFor.of(instruction)
        if is_training(instruction) and not self._relays:
            about = await self._book(instruction, policy)
        blobs = blobs_of(instruction.envelope)
        if self._relays and instruction.app.archive.id:
            blobs = [*blobs, instruction.app.archive]
        needed = {blob.id for blob in blobs}
        self._prune(needed, policy.received_bytes_max)
        with phase("meadow.client.fetch"):
            for blob in blobs:
                await self._fetch(blob)
        self._prune(needed, policy.received_bytes_max)
        label = label_of(instruction.envelope)
        detail: dict[str, str | int | float] = {
            "run": instruction.run_id,
            "instruction": instruction.id,
        }
        if not is_talk(instruction.envelope.metadata.message_type):
            verb = "training" if is_training(instruction) else "evaluating"
            text = f"{label}: {verb} app {instruction.app.name}"
            self._report(Event(kind="training", text=text, detail=detail))
        done = await self._train(instruction, step)
        error = done.envelope.error
        if done.envelope.HasField("error") and error.code != NOTHING_TO_EVALUATE:
            text = f"{label}: {error.reason}"
            self._report(Event(kind="failed", text=text, detail=detail))
        envelope = _for_server(instruction, done.envelope)
        norm = await asyncio.to_thread(
            update_norm,
            envelope,
            instruction.envelope,
            reply_dir=self._state.reply_dir(instruction.run_id, instruction.id),
            blob_dir=self._blob_dir,
        )
        about = replace(about, norm=norm)
        return await _finish(
            asyncio.to_thread(self._state.record, instruction, envelope, done.state, about)
        )

    async def _book(self, instruction: Instruction, policy: PolicyConfig) -> SentFor:
        """Count an instruction in the owner's ledger; return what the log says of that."""
        now_s = self._clock()
        noise, steps = charged_noise(instruction, policy), charged_steps(instruction, policy)
        epsilon, of_record = round_epsilons(noise, steps, policy.delta)
        await asyncio.to_thread(
            self._ledger.participate, instruction, now_s=now_s, noise=noise, steps=steps
        )
        return replace(SentFor.of(instruction), epsilon=epsilon, record_epsilon=of_record)

    async def _train(self, instruction: Instruction, step: Callable[[], None]) -> TrainingDone:
        run_id = instruction.run_id
        reply_dir = self._state.reply_dir(run_id, instruction.id)
        state_dir = self._state.state_dir(run_id)
        state = self._state.state_of(run_id)
        step()
        self.training = True
        try:
            with phase("meadow.client.train"):
                return await self._trainer.execute(
                    instruction, self._blob_dir, reply_dir, state_dir, state, step
                )
        finally:
            self.training = False

    def _allow(self, instruction: Instruction) -> PolicyConfig:
        """Return the owner's policy if it allows the instruction.

        Raises:
            RefusedError: it does not.
        """
        try:
            policy = self._owner.config().policy
            installed = self._owner.sha256(instruction.app.name)
        except (ConfigError, AppError) as error:
            self._report(Event(kind="warning", text=str(error)))
            raise RefusedError("this client's client.toml or app has an error") from error
        if is_training(instruction):
            self._ledger.require_unanswered(instruction)
        rounds_today = 0
        if policy.rounds_per_day is not None:
            now_s = self._clock()
            rounds_today = self._ledger.rounds_today(now_s=now_s, besides=content_of(instruction))
        check(instruction, policy, installed=installed, rounds_today=rounds_today)
        self._require_room(instruction, policy.disk_bytes_max)
        if policy.has_budget:
            check_budget(
                instruction,
                policy,
                spent=self._ledger.spent(besides=content_of(instruction)),
                rounds=self._ledger.rounds_of_run(instruction),
            )
        return policy

    def _require_room(self, instruction: Instruction, bytes_max: int | None) -> None:
        """Check that what an instruction brings, and as much for its answer, fits on the disk and into the owner's
        bound, if there is one; what is stored only for reuse goes first.

        Raises:
            RefusedError: it does not fit.
        """
        blobs = blobs_of(instruction.envelope)
        sizes = {blob_path(self._blob_dir, check_blob_id(b.id)): b.size_bytes for b in blobs}
        missing = sum(size - _size_of(path) for path, size in sizes.items())
        needed = max(0, missing) + sum(sizes.values())
        if not needed or not self._why_no_room(needed, bytes_max):
            return
        self._prune({blob.id for blob in blobs}, 0)
        self._state.file_pool.clear()
        if why := self._why_no_room(needed, bytes_max):
            raise RefusedError(f"{why}, and this instruction needs {needed} more")

    def _why_no_room(self, needed_bytes: int, bytes_max: int | None) -> str:
        folder = self._owner.directory
        if needed_bytes > (free := shutil.disk_usage(folder).free):
            return f"the disk of {folder} has {free} bytes free: make room there"
        if bytes_max is not None and (used := _used_bytes(folder)) + needed_bytes > bytes_max:
            return f"policy.disk_bytes_max is {bytes_max}: {used} bytes are used"
        return ""

    async def _refuse(self, instruction: Instruction, reason: str) -> Outgoing:
        now_s = self._clock()
        try:
            await asyncio.to_thread(self._ledger.refuse, instruction, reason, now_s=now_s)
        except StoreError as error:
            self._report(Event(kind="warning", text=str(error)))
        reason = reason[:REASON_CHARS_MAX]
        text = f"{label_of(instruction.envelope)}: refused: {reason}"
        detail: dict[str, str | int | float] = {
            "run": instruction.run_id,
            "app": instruction.app.name,
        }
        self._report(Event(kind="refused", text=text, detail=detail))
        reply = Reply(instruction_id=instruction.id, refused=reason)
        return Outgoing(reply, SentFor.of(instruction))

    async def _fetch(self, blob: Blob) -> None:
        """Fetch a blob into the folder of blobs, unless it is there and complete."""
        path = blob_path(self._blob_dir, check_blob_id(blob.id))
        if self._verified.get(blob.id) == (blob.size_bytes, blob.crc32) and path.is_file():
            path.touch()
            return
        await self._download(blob, self._blob_dir, self._state.file_pool)
        path.touch()
        self._verified[blob.id] = (blob.size_bytes, blob.crc32)

    async def _download(self, blob: Blob, folder: Path, file_pool: FilePool | None = None) -> Path:
        """Fetch a blob, over several connections if necessary."""
        check_blob_id(blob.id)
        attempt = corrupt = 0
        while True:
            connection = await self._uplink.online()
            try:
                return await connection.download(blob, folder, file_pool)
            except UnreachableError:
                attempt = await self._uplink.pause(connection, attempt)
            except ProtocolError:
                corrupt += 1
                if corrupt == CORRUPT_MAX:
                    raise

    def _prune(self, needed: set[str], bytes_max: int) -> None:
        """Keep the `needed` blobs, and the newest others up to `BLOBS_KEPT` and `bytes_max`."""
        files = sorted(self._blob_dir.iterdir(), key=lambda path: -path.stat().st_mtime_ns)
        kept_bytes = 0
        for index, path in enumerate(files):
            if path.name.split(".")[0] in needed:
                continue
            kept_bytes += path.stat().st_size
            if index >= BLOBS_KEPT or kept_bytes > bytes_max:
                self._state.file_pool.keep(path)
                self._verified.pop(path.stem, None)


def _used_bytes(folder: Path) -> int:
    """Return the sizes of all files in a folder, without links and without what goes meanwhile."""
    files = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
    return sum(_size_of(path) for path in files)


def _size_of(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _for_server(instruction: Instruction, answer: Envelope) -> Envelope:
    """Return the answer for the server. If clients add the noise themselves, all failures look the
    same, as the cause of a failure could reveal data."""
    if answer.HasField("error") and hides_from_server(instruction):
        return failure(instruction, APP_RAISED, HIDDEN_REASON)
    return answer


async def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Wait until work in a thread has ended, even if cancelled: later steps need its result."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    result = task.result()
    if cancelled:
        raise asyncio.CancelledError
    return result


def label_of(envelope: Envelope) -> str:
    """Return a label of the work for people: the round, or the run if it has none."""
    group = envelope.metadata.group_id[:20]
    return f"round {group}" if group.isdigit() else f"run {envelope.metadata.run_id}"
