"""A relay's answer to an instruction: what the clients below it answer, added up."""

from __future__ import annotations

import asyncio
import hmac
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)

from ..client.agent.training import APP_RAISED, failure
from ..errors import ProtocolError, StoreError, UpdateError
from ..flower.messages import identify_process, params_to_arrays, records_in, set_message_id
from ..privacy.dp.mechanisms.clipping import WITHIN_KEY, Clipping, clip_update
from ..server.daemon.daemon import Works
from ..server.worker.grid import FleetGrid
from ..strategies.algorithms.algorithm import Update
from ..strategies.algorithms.combined import EXAMPLES_KEY
from ..strategies.algorithms.metrics import MetricMeans, Metrics
from ..strategies.rounds.broadcast import Broadcast
from ..strategies.rounds.checks import Reply, ReplyError, forms_of, read_reply
from ..strategies.rounds.relayed import ExactFold, update_of
from ..transport.blobs import blob_path, blobs_of
from ..transport.codec import BlobWriter, decode, encode
from ..transport.durable import make_folder
from ..transport.fleet_pb2 import Blob, Envelope, Instruction, TrainingDone
from ..transport.relaying import RELAY_RECORD, REST_RECORD
from .below import Below

__all__ = ["RelayTrainer"]

PASSED_ON = (MessageType.TRAIN, MessageType.EVALUATE)
STEP_S = 1.0
DEADLINE_SHARE = 0.9
"""Of the time that the server above waits: the rest is for the relay's own answer."""
RUNS_MAX = 16
"""Runs whose last round is kept, as its answer may be asked for again."""
REASON_CHARS_MAX = 300
REASONS_MAX = 1000
"""Failures that are told with their reason."""
UNUSABLE = 4
"""Flower's code for a reply that is not available. Source: flwr 1.41, ErrorCode."""


class RelayTrainer:
    """Passes instructions on to the clients below, and adds their replies up.

    It is the agent's trainer: the agent makes its answer durable and delivers it, as a client's.
    A relay that was killed opens the step again, in which the replies that had come are waiting.
    """

    def __init__(
        self,
        works: Works,
        *,
        secret: bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._journal = works.journal
        self._thread = works.thread
        self._dispatcher = works.dispatcher
        self._agents = works.agents
        self._spool = works.spool
        self._secret = secret
        self._clock = clock

    async def execute(
        self,
        instruction: Instruction,
        blob_dir: Path,
        reply_dir: Path,
        state_dir: Path,
        state: bytes,
        step: Callable[[], None],
    ) -> TrainingDone:
        """As `Trainer.execute`: ask the clients below, and return their combined answer."""
        below = Below(instruction, self._dispatcher, self._agents, asyncio.get_running_loop())
        run_id = instruction.run_id
        await self._prepare(instruction, blob_dir)
        self._dispatcher.attach(run_id, below.take)
        work = asyncio.ensure_future(
            asyncio.to_thread(self._combined, instruction, below, blob_dir, reply_dir)
        )
        try:
            while not work.done():
                step()
                await asyncio.wait([work], timeout=STEP_S)
            envelope = work.result()
        except asyncio.CancelledError:
            below.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise
        finally:
            self._dispatcher.detach(run_id)
        return TrainingDone(instruction_id=instruction.id, envelope=envelope)

    async def prepare(self, app: str) -> None:
        """Nothing has to be loaded."""

    def resident_bytes(self) -> int | None:
        """As `Trainer.resident_bytes`: no process trains."""
        return None

    async def close(self) -> None:
        """Nothing is held."""

    # ------------------------------------------------------------------ before

    async def _prepare(self, instruction: Instruction, blob_dir: Path) -> None:
        """Make the files of an instruction ready for the clients, and forget what they had before."""
        run_id, app = instruction.run_id, instruction.app
        group = instruction.envelope.metadata.group_id
        begun = await self._thread(self._journal.steps.groups, run_id)
        for before in set(begun) - {group}:
            await self._dispatcher.forget(run_id, before, await self._unneeded(instruction))
        runs = await self._thread(self._journal.steps.runs)
        for old in [run for run in runs if run != run_id][: 1 - RUNS_MAX]:
            await self._dispatcher.forget(old)
        await self._thread.patiently(
            self._journal.runs.relay, run_id, app.name, app.sha256, now_s=self._clock()
        )
        folder = self._spool.outgoing(run_id)
        await asyncio.to_thread(make_folder, folder)
        for blob in [*blobs_of(instruction.envelope), *archive_of(instruction)]:
            await asyncio.to_thread(_link, blob_path(blob_dir, blob.id), blob_path(folder, blob.id))
        if archive_of(instruction):
            self._dispatcher.offer(run_id, app, folder)

    async def _unneeded(self, instruction: Instruction) -> list[str]:
        """Return the blobs that clients were sent before, and are not sent now."""
        needed = {blob.id for blob in blobs_of(instruction.envelope)}
        needed |= {blob.id for blob in archive_of(instruction)}
        folder = self._spool.outgoing(instruction.run_id)
        names = await asyncio.to_thread(
            lambda: [path.name.split(".")[0] for path in folder.glob("*") if path.is_file()]
        )
        return [name for name in names if name not in needed]

    # ------------------------------------------------------------------ in a thread

    def _combined(
        self, instruction: Instruction, below: Below, blob_dir: Path, reply_dir: Path
    ) -> Envelope:
        def path_of(blob: Blob) -> Path:
            return blob_path(blob_dir, blob.id)

        identify_process(  # one instruction is carried out at a time
            run_id=instruction.run_id, node_id=instruction.envelope.metadata.dst_node_id
        )
        asked = decode(instruction.envelope, path_of)
        content = RecordDict(dict(asked.content))
        about = content.pop(RELAY_RECORD, None)
        kind = asked.metadata.message_type
        if not isinstance(about, ConfigRecord) or kind.partition(".")[0] not in PASSED_ON:
            return failure(
                instruction,
                APP_RAISED,
                f"a relay passes on training and evaluation to the clients below it, not {kind!r}",
            )
        listed, waits_s = about.get("clients"), about.get("deadline-s")
        if not isinstance(listed, list) or not isinstance(waits_s, float):
            raise ProtocolError("the instruction does not say which clients it is for")
        clients = [client for client in listed if isinstance(client, int)]
        grid = FleetGrid(
            below,
            run_id=instruction.run_id,
            spool=self._spool.outgoing(instruction.run_id),
            quorum=0,
            cohorts={},
            announced_cohort=instruction.cohort_clients if instruction.differential_privacy else 0,
            secret=hmac.digest(self._secret, instruction.id.encode(), "sha256"),
            relays=below,
        )
        broadcast = Broadcast(content, kind, sorted(clients), group_id=asked.metadata.group_id)
        trained = content if kind == MessageType.TRAIN else None
        answer = _Answer(trained, combined=below.has_relays)
        for reply in grid.send_and_receive(broadcast, timeout=DEADLINE_SHARE * waits_s):
            answer.take(reply)
        reply = Message(answer.content(clients), reply_to=asked)
        set_message_id(reply, f"{asked.metadata.message_id}-r")
        shutil.rmtree(reply_dir, ignore_errors=True)
        return encode(reply, BlobWriter(reply_dir))


class _Answer:
    """The replies of the clients below to one instruction, as one."""

    def __init__(self, trained: RecordDict | None, *, combined: bool = True) -> None:
        """`trained` is what the clients are sent to train, None if they evaluate; `combined` says
        whether a reply may be another relay's."""
        self._combined = combined
        self._forms = self._fold = self._clipping = None
        self._private = False
        """Whether updates of single clients are bounded or noisy: then each client counts once."""
        if trained is not None:
            (arrays,) = records_in(trained, ArrayRecord)
            self._params = params = {name: array.numpy() for name, array in arrays.items()}
            self._forms, self._fold = forms_of(params), ExactFold(params)
            terms = trained.config_records.get("config", ConfigRecord())
            self._private = Clipping.of(terms) is not None
            self._clipping = Clipping.by_server(terms)
        self._means = MetricMeans()
        self._weight = 0.0
        self._clients: list[int] = []
        self._failed: dict[int, tuple[int, str]] = {}

    def fail(self, client: int, code: int, reason: str) -> None:
        """Note that a client has no answer that counts."""
        self._failed[client] = (code, reason[:REASON_CHARS_MAX])

    def take(self, reply: Message) -> None:
        """Count a reply, or note why it does not count."""
        client = reply.metadata.src_node_id
        if reply.has_error():
            self.fail(client, reply.error.code, reply.error.reason or "failed")
            return
        try:
            read = read_reply(reply, forms=self._forms, combined=self._combined)
            if self._fold is not None:
                metrics = records_in(reply.content, MetricRecord)[0]
                read = self._as_private(read) if self._private else read
                update = update_of(read, metrics, read.tensors, client=client)
                self._fold.add(self._clipped(update))
        except UpdateError as error:
            text = f"{error.field} {error.reason}" if isinstance(error, ReplyError) else str(error)
            self.fail(client, UNUSABLE, text)
            return
        self._means.add(read.metrics, weight=read.weight)
        self._weight += read.weight
        self._clients += read.clients

    def _as_private(self, read: Reply) -> Reply:
        """Return a reply of which each client counts once, without what it reports, but for whether its
        update was within an adaptive clip: a whole number of clients was."""
        count = len(read.clients)
        metrics: Metrics = {}
        if self._clipping is not None and self._clipping.kind == "adaptive":
            within = min(1.0, max(0.0, read.metrics.get(WITHIN_KEY) or 0.0))
            metrics[WITHIN_KEY] = round(within * count) / count
        return replace(read, weight=float(count), metrics=metrics)

    def _clipped(self, update: Update) -> Update:
        """Return a client's update as the server would clip it; a relay has clipped those in its sum.

        Raises:
            UpdateError: it has no finite norm.
        """
        if self._clipping is None or update.clients > 1:
            return update
        tensors, _ = clip_update(self._params, update.params, self._clipping, exact=True)
        return replace(update, params=tensors)

    def content(self, asked: list[int]) -> RecordDict:
        """Return the content of the answer."""
        for client in set(asked) - {*self._clients, *self._failed}:
            self.fail(client, UNUSABLE, "no answer in time")
        failed = sorted(self._failed)
        about = ConfigRecord(
            {
                "clients": sorted(self._clients),
                "failed": failed,
                "codes": [self._failed[client][0] for client in failed],
                "reasons": [
                    self._failed[client][1] if place < REASONS_MAX else ""
                    for place, client in enumerate(failed)
                ],
            }
        )
        if self._clipping is not None:
            about["clip-norm"] = self._clipping.clip_norm
        content = RecordDict({RELAY_RECORD: about})
        if not self._clients:
            return content
        weight = self._weight
        if self._fold is not None:
            sums, rests, weights = self._fold.finish()
            weight, about["weights"] = weights[0], list(weights)
            content["arrays"] = params_to_arrays(sums)
            content[REST_RECORD] = params_to_arrays(rests)
        means = {name: mean for name, mean in self._means.means().items() if mean is not None}
        content["metrics"] = MetricRecord({EXAMPLES_KEY: weight, **means})
        return content


def archive_of(instruction: Instruction) -> list[Blob]:
    """Return the archive of an instruction's app, where the server offers it."""
    archive = instruction.app.archive
    return [archive] if archive.id else []


def _link(source: Path, target: Path) -> None:
    if target.exists():
        return
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:  # another disk
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise StoreError(f"{target}: {error.strerror or error}") from error
