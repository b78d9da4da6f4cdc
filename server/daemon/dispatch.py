"""Who has to do what: open steps, pending instructions, leases and quorums.

A *step* is one batch of instructions of a run (a round's training, a round's evaluation). It ends
when everybody has answered; when its quorum is met and either its deadline has passed or all who
are still missing have let their leases lapse; or, with too few updates, when both is so. Everything
here is derived from the journal and can be rebuilt from it; this module knows nothing of gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from ...errors import DamageError, MeadowError
from ...transport import fleet_pb2 as pb
from ...transport.blobs import blobs_of, packed_bytes_in
from ...transport.run_sites import pack_sites
from ..journal.journal import Journal
from ..journal.run_table import RunRow
from ..journal.step_table import InstructionRow
from .agent_registry import AgentLink, AgentRegistry
from .quotas import tensor_bytes_of
from .spool import Spool
from .steps import NODE_UNAVAILABLE, OpenStep, Pending, accepted, addressed, failed, instruction_of
from .threads import JournalThread

__all__ = ["Dispatcher"]

WorkerSend = Callable[[pb.DaemonMessage], Awaitable[None]]


class Observer(Protocol):
    """Whoever looks after the runs."""

    def fail(self, run_id: int, error: MeadowError) -> None:
        """A run cannot go on."""

    async def emit(self, run_id: int, kind: str, detail: Mapping[str, Any]) -> None:
        """Something happened in a run that people want to know."""


class Dispatcher:
    """Sends instructions to agents and their replies to the run workers."""

    def __init__(
        self,
        journal: Journal,
        thread: JournalThread,
        spool: Spool,
        agents: AgentRegistry,
        *,
        lease_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._thread = thread
        self._spool = spool
        self._agents = agents
        self._lease_s = lease_s
        self._clock = clock
        self._steps: dict[tuple[int, str], OpenStep] = {}
        self._offers: dict[int, tuple[pb.App, Path]] = {}
        self._by_node: dict[int, dict[str, Pending]] = {}
        self._workers: dict[int, WorkerSend] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._large = asyncio.Lock()
        self.observer: Observer | None = None
        self._counts: dict[int, tuple[str, int]] = {}
        """By run: the last group, and how many sites the run had when it began."""
        self._largest: dict[int, int] = {}

    # ------------------------------------------------------------------ the worker's side

    def attach(self, run_id: int, send: WorkerSend) -> None:
        """Let a run's worker receive replies."""
        self._workers[run_id] = send

    def detach(self, run_id: int) -> None:
        """The worker is gone; replies wait in the journal until it is back."""
        self._workers.pop(run_id, None)
        for step in self._steps.values():
            if step.run_id == run_id:
                step.attached = step.end_emitted = False

    async def tidy(self, run_id: int) -> None:
        """Before a worker starts anew: delete the files that a crash left unused."""
        steps = [step for step in self._steps.values() if step.run_id == run_id]
        blobs = {blob_id for step in steps for blob_id in step.blob_ids()}
        known = await self._thread(self._journal.steps.instruction_ids, run_id)
        await asyncio.to_thread(self._spool.tidy, run_id, blobs=blobs, instructions=known)

    async def restore(self, run: RunRow) -> None:
        """Take up a run's open steps from the journal after a restart of the daemon."""
        for row in await self._thread(self._journal.steps.unfinished, run.id):
            rows = await self._thread(self._journal.steps.instructions, run.id, row["key"])
            sites = await self._thread(self._sites_of, run, rows)
            self._open(
                run, row["key"], row["group_id"], row["quorum"], row["deadline_s"], rows, sites
            )

    async def open_step(self, run_id: int, request: pb.Step) -> None:
        """Begin a step, or, if it is in the journal already, go on with it as it was recorded."""
        instructions = [
            (item.metadata.message_id, item.metadata.dst_node_id, item.SerializeToString())
            for item in request.envelopes
        ]
        group_id = request.envelopes[0].metadata.group_id if request.envelopes else ""
        key, quorum, deadline_s = request.key, request.quorum, request.deadline_s

        def record() -> tuple[RunRow, list[InstructionRow], list[int], bool]:
            steps = self._journal.steps
            rows = steps.open(
                run_id, key, group_id,
                quorum=quorum, deadline_s=deadline_s, instructions=instructions,
            )  # fmt: skip
            run = self._journal.runs.get(run_id)
            assert run is not None, f"run {run_id} is not in the journal"
            return run, rows, self._sites_of(run, rows), steps.is_over(run_id, key)

        run, rows, sites, ended = await self._thread.patiently(record)
        known = self._steps.get((run_id, key))
        step = known or self._open(run, key, group_id, quorum, deadline_s, rows, sites, ended=ended)
        async with step.lock:
            if known is not None:
                rows = await self._thread(self._journal.steps.instructions, run_id, key)
            for row in rows:
                if row.state == "answered":
                    reply = pb.Envelope.FromString(row.reply or b"")
                    await self._forward(step, row.id, row.node_id, reply)
            step.attached = True
        await self._emit_end(step)

    def _open(
        self,
        run: RunRow,
        key: str,
        group_id: str,
        quorum: int,
        deadline_s: float,
        rows: list[InstructionRow],
        sites: list[int],
        *,
        ended: bool = False,
    ) -> OpenStep:
        ready, now_s = pb.WorkerReady.FromString(run.ready or b""), self._clock()
        count = self._count_told(run.id, group_id, len(sites))
        joined = set(sites[count:])  # since the group began
        told, with_joined = pack_sites(sites[:count]), pack_sites(sites)
        step = OpenStep(
            run_id=run.id,
            key=key,
            group_id=group_id,
            quorum=quorum,
            deadline_at_s=now_s + deadline_s,
            ended=ended,
        )
        self._steps[run.id, key] = step
        for row in rows:
            sent_bytes = tensor_bytes_of(pb.Envelope.FromString(row.envelope))
            self._largest[run.id] = max(self.sent_bytes(run.id), sent_bytes)
            if row.state == "answered":
                step.updates += not pb.Envelope.FromString(row.reply or b"").HasField("error")
            elif row.state == "pending":
                seen = with_joined if row.node_id in joined else told
                item = Pending(
                    instruction=instruction_of(
                        run, ready, row, clients=len(rows), sites=seen, app=self._app_of(run.id)
                    ),
                    node_id=row.node_id,
                    step=step,
                    lease_until_s=now_s + self._lease_s,
                )
                step.pending[row.id] = item
                self._by_node.setdefault(row.node_id, {})[row.id] = item
                self._send_instruction(item)
        step.watcher = asyncio.create_task(self._watch(step))
        return step

    def offer(self, run_id: int, app: pb.App, folder: Path) -> None:
        """From now on, a run's instructions offer its app, whose archive lies in `folder`."""
        self._offers[run_id] = (app, folder)

    def _app_of(self, run_id: int) -> pb.App | None:
        found = self._offers.get(run_id)
        return None if found is None else found[0]

    def _sites_of(self, run: RunRow, rows: list[InstructionRow]) -> list[int]:
        """Return the run's sites; those of these instructions are among them."""
        ready = pb.WorkerReady.FromString(run.ready or b"")
        asked = [row.node_id for row in rows]
        by_sampling = ready.cohort > 0  # as they are announced
        return self._journal.runs.sites(
            run.id, tags=ready.tags, asked=asked, by_sampling=by_sampling
        )

    def _count_told(self, run_id: int, group_id: str, count: int) -> int:
        """Return how many sites the run has: the same in all steps of a group, as the clients of
        a secure sum are bound to what they were told when they introduced themselves."""
        group, _ = self._counts.get(run_id, (None, 0))
        if group != group_id:
            self._counts[run_id] = group_id, count
        return self._counts[run_id][1]

    def _send_instruction(self, item: Pending) -> None:
        link = self._agents.get(item.node_id)
        if link is not None:
            self._give(item, link)

    def _give(self, item: Pending, link: AgentLink) -> None:
        self._spool.count(item.step.run_id, sent=packed_bytes_in(item.instruction.envelope))
        link.send(pb.ServerMessage(instruction=item.instruction))

    def _cancel(self, item: Pending, reason: str) -> None:
        link = self._agents.get(item.node_id)
        if link is not None:
            cancel = pb.Cancel(instruction_id=item.instruction.id, reason=reason)
            link.send(pb.ServerMessage(cancel=cancel))

    async def _watch(self, step: OpenStep) -> None:
        """End the step when its time has come, and tell the worker once it is attached."""
        try:
            await self._until_over(step)
            async with step.lock:
                if step.ended:  # with its last answer
                    return
                await self._thread.patiently(self._journal.steps.end, step.run_id, step.key)
                step.ended = True
                missing = list(step.pending.values())
                for item in missing:
                    self._drop(item)
                    self._cancel(item, "the round ended without this client")
            await self._emit_end(step)
            for item in missing:
                await asyncio.to_thread(self._spool.settle, step.run_id, item.instruction.id, ())
        except MeadowError as error:
            self._fail(step.run_id, error)

    async def _until_over(self, step: OpenStep) -> None:
        while not step.ended:
            step.changed.clear()
            now_s = self._clock()
            check_s = step.next_check_s(now_s)
            if check_s is None:
                return
            await self._emit_wait(step, now_s)
            try:
                async with asyncio.timeout(max(0.0, check_s - self._clock())):
                    await step.changed.wait()
            except TimeoutError:
                continue

    async def _emit_wait(self, step: OpenStep, now_s: float) -> None:
        """Say for whom a step waits that has too few updates: all of them are silent."""
        silent = step.pending and step.is_silent(now_s)
        if silent and not step.wait_emitted and self.observer is not None:
            missing = sorted(item.node_id for item in step.pending.values())
            detail = {"round": step.group_id, "step": step.key, "missing": missing[:100],
                      "updates": step.updates, "quorum": step.quorum}  # fmt: skip
            await self.observer.emit(step.run_id, "round_waits", detail)
        step.wait_emitted = bool(silent)

    def _fail(self, run_id: int, error: MeadowError) -> None:
        if self.observer is not None:
            self.observer.fail(run_id, error)

    async def _emit_end(self, step: OpenStep) -> None:
        send = self._workers.get(step.run_id)
        if send is None or not (step.ended and step.attached) or step.end_emitted:
            return
        step.end_emitted = True
        sent, received = self._spool.traffic(step.run_id)
        end = pb.StepEnd(key=step.key, bytes_sent=sent, bytes_received=received)
        await send(pb.DaemonMessage(end=end))

    def _drop(self, item: Pending) -> None:
        item.step.pending.pop(item.instruction.id, None)
        self._by_node.get(item.node_id, {}).pop(item.instruction.id, None)
        for upload in item.uploads:
            upload.cancel()

    async def _forward(self, step: OpenStep, id_: str, node_id: int, reply: pb.Envelope) -> None:
        send = self._workers.get(step.run_id)
        if send is None:
            return
        message = pb.StepReply(
            key=step.key,
            node_id=node_id,
            envelope=reply,
            blob_dir=str(self._spool.replies(step.run_id, id_)),
        )
        await send(pb.DaemonMessage(reply=message))

    async def forget(
        self, run_id: int, group_id: str | None = None, blobs: Collection[str] = ()
    ) -> None:
        """Drop a group's steps and their files (None: everything of the run), and what was for
        clients.

        Whoever still works on one is told to stop.
        """
        if group_id is None:
            self._counts.pop(run_id, None)
            self._offers.pop(run_id, None)
            self._largest.pop(run_id, None)
        gone = await self._thread.patiently(self._journal.steps.forget, run_id, group_id)
        ids = set(gone)
        for key, step in list(self._steps.items()):
            if step.run_id == run_id and group_id in (None, step.group_id):
                for item in list(step.pending.values()):
                    self._drop(item)
                    self._cancel(item, "nobody asks for it any more")
                if step.watcher is not None and not step.ended:
                    step.watcher.cancel()
                del self._steps[key]
        everything = group_id is None
        await asyncio.to_thread(self._spool.forget, run_id, ids, blobs, everything=everything)

    # ------------------------------------------------------------------ the agents' side

    def connected(self, link: AgentLink) -> None:
        """Give a client that has just connected everything that it still owes."""
        for item in self._by_node.get(link.node_id, {}).values():
            self._renew(item)
            self._give(item, link)

    def renew_lease(self, node_id: int, instruction_id: str) -> None:
        """A client shows progress: its lease runs anew."""
        item = self._by_node.get(node_id, {}).get(instruction_id)
        if item is not None:
            self._renew(item)

    def _renew(self, item: Pending) -> None:
        item.lease_until_s = self._clock() + self._lease_s
        if item.step.wait_emitted:
            item.step.changed.set()

    def blob(self, node_id: int, blob_id: str) -> tuple[int, pb.Blob, Path] | None:
        """Return the run and blob that this client was told to fetch, and its folder, if it was."""
        for item in self._by_node.get(node_id, {}).values():
            run_id, archive = item.instruction.run_id, item.instruction.app.archive
            if archive.id and archive.id == blob_id and run_id in self._offers:
                return run_id, archive, self._offers[run_id][1]
            for blob in blobs_of(item.instruction.envelope):
                if blob.id == blob_id:
                    return run_id, blob, self._spool.outgoing(run_id)
        return None

    def sent_bytes(self, run_id: int) -> int:
        """Return how large the largest tensors are that one instruction of a run had: in some rounds
        the model comes with one, and what is made of it goes with the answer to another."""
        return self._largest.get(run_id, 0)

    def owed(self, node_id: int, instruction_id: str) -> Pending | None:
        """Return an instruction that this client owes an answer to, if it does."""
        return self._by_node.get(node_id, {}).get(instruction_id)

    def run_of(self, node_id: int, instruction_id: str) -> int | None:
        """Return the run of an instruction that this client owes an answer to; None if it does
        not: never given, given to another, answered, or pruned."""
        item = self.owed(node_id, instruction_id)
        return None if item is None else item.instruction.run_id

    async def reply(self, node_id: int, reply: pb.Reply) -> None:
        """Take a client's answer, once. Returns when it is durable and may be acknowledged."""
        item = self._by_node.get(node_id, {}).get(reply.instruction_id)
        if item is None:
            return  # answered before, or too late: acknowledged so that the client moves on
        self._spool.count(item.step.run_id, received=packed_bytes_in(reply.envelope))
        # Once begun it is carried through: the client may hang up while it is written down.
        task = asyncio.create_task(self._accept(item, reply))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        await asyncio.shield(task)

    async def _accept(self, item: Pending, reply: pb.Reply) -> None:
        """Take a reply; of those that are in files, which may be large, one at a time."""
        if not reply.HasField("file"):
            await self._answer(item, accepted(item, reply, self._spool, now_s=self._clock()))
            return
        async with self._large:
            envelope = await asyncio.to_thread(
                accepted, item, reply, self._spool, now_s=self._clock()
            )
            await self._answer(item, envelope)

    def refused(self, run_id: int, group_id: str, node_id: int) -> None:
        """The worker has found an update unusable: it does not count towards the quorum."""
        step = self._steps.get((run_id, f"{group_id}/train/0"))
        if step is not None and node_id not in step.refused:
            step.refused.add(node_id)
            step.updates -= 1
            step.changed.set()

    async def give_up(self, node_id: int, reason: str) -> None:
        """A client will not answer any more: whatever it owes has failed."""
        for item in list(self._by_node.get(node_id, {}).values()):
            envelope = addressed(item, failed(NODE_UNAVAILABLE, reason), now_s=self._clock())
            await self._answer(item, envelope)

    async def _answer(self, item: Pending, envelope: pb.Envelope) -> None:
        id_, step, body = item.instruction.id, item.step, envelope.SerializeToString()
        async with step.lock:
            ends = (step.run_id, step.key) if step.pending.keys() == {id_} else None
            try:
                taken = await self._thread(self._journal.steps.answer, id_, body, ends=ends)
            except DamageError as error:  # asking this client again does not help
                return self._fail(step.run_id, error)
            if not taken:
                return
            item.named = frozenset(blob.id for blob in blobs_of(envelope))
            self._drop(item)
            step.updates += not envelope.HasField("error")
            if step.attached:
                await self._forward(step, id_, item.node_id, envelope)
            step.ended = step.ended or ends is not None
        step.changed.set()
        await self._emit_end(step)
        await asyncio.to_thread(self._spool.settle, step.run_id, id_, item.named)
