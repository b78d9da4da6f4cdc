"""Open steps, pending instructions, leases and quorums.

A *step* is one batch of instructions of a run (a round's training, a round's evaluation). It ends
when all clients have answered; when its quorum is met and either its deadline has passed or the
leases of all missing clients have lapsed; or, below the quorum, when both have happened. All state
here is derived from the journal and can be rebuilt from it; this module is independent of gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ...errors import DamageError, MeadowError
from ...transport import fleet_pb2 as pb
from ...transport.blobs import blobs_of, packed_bytes_in
from ...transport.relaying import clients_behind
from ...transport.run_sites import pack_sites
from ...transport.spans import NO_TRACES, Traces
from ..journal.journal import Journal
from ..journal.run_table import RunRow
from ..journal.step_table import InstructionRow
from .agent_registry import AgentLink, AgentRegistry
from .lines import Lines
from .quotas import tensor_bytes_of
from .spool import Spool
from .steps import (
    NODE_UNAVAILABLE,
    ArrivedReply,
    OpenStep,
    Pending,
    accepted,
    addressed,
    failed,
    instruction_of,
    updates_in,
)
from .threads import TOGETHER_MAX, JournalThread

__all__ = ["Dispatcher"]

WorkerSend = Callable[[pb.DaemonMessage], Awaitable[None]]


class Observer(Protocol):
    """Receives the failures and events of runs; the supervisor implements it."""

    def fail(self, run_id: int, error: MeadowError) -> None:
        """End a run that cannot go on."""

    async def emit(self, run_id: int, kind: str, detail: Mapping[str, Any]) -> None:
        """Record an event of a run."""


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
        traces: Traces = NO_TRACES,
    ) -> None:
        self._traces = traces
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
        self.lines = Lines(journal, thread)
        self.observer: Observer | None = None
        self._counts: dict[int, tuple[str, int]] = {}
        """By run: the last group, and the number of sites when that group began."""
        self._largest: dict[int, int] = {}

    # ------------------------------------------------------------------ the worker's side

    def attach(self, run_id: int, send: WorkerSend) -> None:
        """Connect a run's worker; it receives replies from now on."""
        self._workers[run_id] = send

    def detach(self, run_id: int) -> None:
        """Disconnect a run's worker; replies wait in the journal for the next one."""
        self._workers.pop(run_id, None)
        for step in self._steps.values():
            if step.run_id == run_id:
                step.attached = step.end_emitted = False

    async def tidy(self, run_id: int) -> None:
        """Delete the files that a crash left unused; called before a worker starts."""
        steps = [step for step in self._steps.values() if step.run_id == run_id]
        blobs = {blob_id for step in steps for blob_id in step.blob_ids()}
        ids = await self._thread(self._journal.steps.instruction_ids, run_id)
        await asyncio.to_thread(self._spool.tidy, run_id, blobs=blobs, instructions=ids)

    async def restore(self, run: RunRow) -> None:
        """Reopen a run's unfinished steps from the journal after a restart of the daemon."""
        for row in await self._thread(self._journal.steps.unfinished, run.id):
            rows = await self._thread(self._journal.steps.instructions, run.id, row["key"])
            sites = await self._thread(self._sites_of, run, rows)
            self._open(
                run, row["key"], row["group_id"], row["quorum"], row["deadline_s"], rows, sites
            )

    async def open_step(
        self, run_id: int, request: pb.Step, *, above: pb.Instruction | None = None
    ) -> None:
        """Begin a step; if it is in the journal already, continue it as recorded there.

        A relay's instructions say of the run what that `above` says.
        """
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
        step = known or self._open(
            run, key, group_id, quorum, deadline_s, rows, sites, ended=ended, above=above
        )
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
        above: pb.Instruction | None = None,
    ) -> OpenStep:
        ready, now_s = pb.WorkerReady.FromString(run.ready or b""), self._clock()
        count = self._announced_count(run.id, group_id, len(sites))
        joined = set(sites[count:])  # since the group began
        announced, with_joined = pack_sites(sites[:count]), pack_sites(sites)
        step = OpenStep(
            run_id=run.id,
            key=key,
            group_id=group_id,
            quorum=quorum,
            deadline_at_s=now_s + deadline_s,
            ended=ended,
        )
        self._steps[run.id, key] = step
        asked = [pb.Envelope.FromString(row.envelope) for row in rows]
        clients = sum(len(clients_behind(envelope) or (1,)) for envelope in asked)
        for row, envelope in zip(rows, asked, strict=True):
            sent_bytes = tensor_bytes_of(envelope)
            self._largest[run.id] = max(self.sent_bytes(run.id), sent_bytes)
            if row.state == "answered":
                step.updates += updates_in(envelope, pb.Envelope.FromString(row.reply or b""))
            elif row.state == "pending":
                seen = with_joined if row.node_id in joined else announced
                item = Pending(
                    instruction=instruction_of(
                        run,
                        ready,
                        row,
                        clients=clients,
                        sites=seen,
                        app=self._app_of(run.id),
                        above=above,
                    ),
                    node_id=row.node_id,
                    step=step,
                    lease_until_s=now_s + self._lease_s,
                )
                item.span = self._traces.sent(item.instruction, client=row.node_id)
                step.pending[row.id] = item
                self._by_node.setdefault(row.node_id, {})[row.id] = item
                self._send_instruction(item)
        step.watcher = asyncio.create_task(self._watch(step))
        return step

    def offer(self, run_id: int, app: pb.App, folder: Path) -> None:
        """Add a run's app to its later instructions; the app's archive is in `folder`."""
        self._offers[run_id] = (app, folder)

    def _app_of(self, run_id: int) -> pb.App | None:
        found = self._offers.get(run_id)
        return None if found is None else found[0]

    def _sites_of(self, run: RunRow, rows: list[InstructionRow]) -> list[int]:
        """Return the run's sites, which include those of these instructions."""
        ready = pb.WorkerReady.FromString(run.ready or b"")
        nodes: list[int] = []
        for row in rows:
            envelope = (
                pb.Envelope.FromString(row.envelope) if self._agents.is_relay(row.node_id) else None
            )
            behind = None if envelope is None else clients_behind(envelope)
            nodes += [row.node_id] if behind is None else behind
        by_sampling = ready.cohort > 0  # only then is the cohort's size announced
        return self._journal.runs.sites(
            run.id,
            tags=ready.tags,
            asked=nodes,
            by_sampling=by_sampling,
            relays=self._agents.relays(),
            behind=self._agents.behind(ready.tags),
        )

    def _announced_count(self, run_id: int, group_id: str, count: int) -> int:
        """Return the number of sites that a group's instructions announce.

        It stays the same in all steps of a group, as the clients of a secure sum commit to the
        list of sites in its first step.
        """
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
        """Wait until the step is over, end it, and notify the worker once it is attached."""
        try:
            await self._until_over(step)
            async with step.lock:
                if step.ended:  # by its last answer
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
        """Emit the missing clients of a step below its quorum when all their leases have lapsed."""
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

    def _drop(self, item: Pending, outcome: str = "gone") -> None:
        item.span.set_outcome(outcome)
        item.span.end()
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
            slow_bytes_per_s=self.lines.slow.get(node_id, 0),
        )
        await send(pb.DaemonMessage(reply=message))

    async def forget(
        self, run_id: int, group_id: str | None = None, blobs: Collection[str] = ()
    ) -> None:
        """Drop a group's steps and files, and these blobs for clients; cancel open instructions.

        With None as the group, drop everything of the run.
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
                    self._cancel(item, "its round or run is over")
                if step.watcher is not None and not step.ended:
                    step.watcher.cancel()
                del self._steps[key]
        everything = group_id is None
        await asyncio.to_thread(self._spool.forget, run_id, ids, blobs, everything=everything)

    # ------------------------------------------------------------------ the agents' side

    def connected(self, link: AgentLink) -> None:
        """Send a client that has just connected all its pending instructions."""
        for item in self._by_node.get(link.node_id, {}).values():
            self._renew(item)
            self._give(item, link)

    def renew_lease(self, node_id: int, instruction_id: str) -> None:
        """Renew the lease of a client that reports progress on an instruction."""
        item = self._by_node.get(node_id, {}).get(instruction_id)
        if item is not None:
            self._renew(item)

    def _renew(self, item: Pending) -> None:
        item.lease_until_s = self._clock() + self._lease_s
        if item.step.wait_emitted:
            item.step.changed.set()

    def blob(self, node_id: int, blob_id: str) -> tuple[int, pb.Blob, Path] | None:
        """Return a blob's run, the blob and its folder, if this client's instructions name it."""
        for item in self._by_node.get(node_id, {}).values():
            run_id, archive = item.instruction.run_id, item.instruction.app.archive
            if archive.id and archive.id == blob_id and run_id in self._offers:
                return run_id, archive, self._offers[run_id][1]
            for blob in blobs_of(item.instruction.envelope):
                if blob.id == blob_id:
                    return run_id, blob, self._spool.outgoing(run_id)
        return None

    def sent_bytes(self, run_id: int) -> int:
        """Return the size of the largest tensors of one instruction of a run, in bytes.

        A reply is bounded by it: in some rounds, the model comes with one instruction, and the
        update goes with the answer to another.
        """
        return self._largest.get(run_id, 0)

    def owed(self, node_id: int, instruction_id: str) -> Pending | None:
        """Return a pending instruction of this client, None if it is not pending."""
        return self._by_node.get(node_id, {}).get(instruction_id)

    def run_of(self, node_id: int, instruction_id: str) -> int | None:
        """Return the run of a pending instruction of this client, None if it is not pending."""
        item = self.owed(node_id, instruction_id)
        return None if item is None else item.instruction.run_id

    async def reply(self, node_id: int, reply: pb.Reply) -> None:
        """Accept a client's reply, once; return when it is durable and can be acknowledged."""
        item = self._by_node.get(node_id, {}).get(reply.instruction_id)
        if item is None:
            return  # answered before, or too late: acknowledged, so that the client drops it
        self._spool.count(item.step.run_id, received=packed_bytes_in(reply.envelope))
        if not reply.HasField("file"):
            await self._answer(item, accepted(item, reply, self._spool, now_s=self._clock()))
            return
        # Shielded from cancellation: the client may disconnect while the file is read.
        task = asyncio.create_task(self._accept_file(item, reply))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        await asyncio.shield(task)

    async def _accept_file(self, item: Pending, reply: pb.Reply) -> None:
        """Accept a reply in a file; it may be large, so only one at a time."""
        async with self._large:
            envelope = await asyncio.to_thread(
                accepted, item, reply, self._spool, now_s=self._clock()
            )
            await self._answer(item, envelope)

    def refused(self, run_id: int, group_id: str, node_id: int) -> None:
        """Exclude an update that the worker has refused from the quorum."""
        step = self._steps.get((run_id, f"{group_id}/train/0"))
        if step is not None and node_id not in step.refused:
            step.refused.add(node_id)
            step.updates -= 1
            step.changed.set()

    async def give_up(self, node_id: int, reason: str) -> None:
        """Fail all pending instructions of a client that will not answer any more."""
        for item in list(self._by_node.get(node_id, {}).values()):
            envelope = addressed(item, failed(NODE_UNAVAILABLE, reason), now_s=self._clock())
            await self._answer(item, envelope)

    async def _answer(self, item: Pending, envelope: pb.Envelope) -> None:
        """Write an answer; return when it is durable.

        It is written even if the waiting task is cancelled, together with what else has arrived
        for its step: a transaction for each of thousands of answers would take most of a round.
        """
        step = item.step
        answer = ArrivedReply(
            item=item, envelope=envelope, written=asyncio.get_running_loop().create_future()
        )
        step.arrived.append(answer)
        if step.writer is None:
            step.writer = asyncio.create_task(self._write_arrived(step))
            self._answering.add(step.writer)
            step.writer.add_done_callback(self._answering.discard)
        await answer.written

    async def _write_arrived(self, step: OpenStep) -> None:
        """Write a step's answers, until there are no more."""
        while answers := step.take_arrived(TOGETHER_MAX):
            error = None
            try:
                await self._write(step, answers)
            except Exception as raised:  # those who wait raise it
                error = raised
            for answer in answers:
                answer.settle(error)
        step.writer = None

    async def _write(self, step: OpenStep, answers: Sequence[ArrivedReply]) -> None:
        """Write answers in one transaction, and pass them on to the worker."""
        rows = [(each.item.instruction.id, each.envelope.SerializeToString()) for each in answers]
        async with step.lock:
            ends = (
                (step.run_id, step.key) if step.pending.keys() <= {id_ for id_, _ in rows} else None
            )
            try:
                stored = await self._thread(self._journal.steps.answer, rows, ends=ends)
            except DamageError as error:  # a retry by these clients does not help
                return self._fail(step.run_id, error)
            taken = [answer for answer, is_new in zip(answers, stored, strict=True) if is_new]
            for answer in taken:
                item, envelope = answer.item, answer.envelope
                item.named = frozenset(blob.id for blob in blobs_of(envelope))
                self._drop(item, "failed" if envelope.HasField("error") else "answered")
                step.updates += updates_in(item.instruction.envelope, envelope)
                if step.attached:
                    await self._forward(step, item.instruction.id, item.node_id, envelope)
            step.ended = step.ended or (bool(taken) and ends is not None)
        step.changed.set()
        await self._emit_end(step)
        await asyncio.to_thread(self._settle, taken)

    def _settle(self, answers: Iterable[ArrivedReply]) -> None:
        """Delete the files of answers that they do not name."""
        for answer in answers:
            item = answer.item
            self._spool.settle(item.step.run_id, item.instruction.id, item.named)
