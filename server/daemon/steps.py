"""Open steps: their pending instructions, and the replies to them as passed to a run worker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from ...errors import ProtocolError
from ...transport import fleet_pb2 as pb
from ...transport.blobs import blobs_of
from ...transport.codec import check_size
from ...transport.fields import check_fields
from ...transport.relaying import clients_behind
from ...transport.run_sites import PackedSites
from ...transport.spans import NO_SPAN, Span
from ..journal.run_table import RunRow
from ..journal.step_table import InstructionRow
from .spool import Spool

__all__ = [
    "NODE_UNAVAILABLE",
    "ArrivedReply",
    "OpenStep",
    "Pending",
    "accepted",
    "addressed",
    "failed",
    "instruction_of",
    "updates_in",
]

REPLY_UNUSABLE, NODE_UNAVAILABLE = 4, 5
"""Flower's error codes. Source: flwr 1.41, common/constant.py, ErrorCode."""
REASON_CHARS_MAX = 500


@dataclass(slots=True, kw_only=True)
class Pending:
    """An instruction that a client has not answered yet."""

    instruction: pb.Instruction
    node_id: int
    step: OpenStep
    lease_until_s: float
    uploads: set[asyncio.Task[Any]] = field(default_factory=set)
    """The uploads for its answer that are under way; they are cancelled when it is answered."""
    received_bytes: int = 0
    """Of the uploads for its answer that were not cut off, and `receiving_s` how long they took."""
    receiving_s: float = 0.0
    named: frozenset[str] = frozenset()
    """The blobs of its answer, once it is answered."""
    span: Span = NO_SPAN


@dataclass(slots=True, kw_only=True)
class ArrivedReply:
    """The reply to a pending instruction, for the journal and the worker."""

    item: Pending
    envelope: pb.Envelope
    written: asyncio.Future[None]
    """Done when the reply is durable, or cannot be."""

    def settle(self, error: Exception | None) -> None:
        """Wake who waits for it, unless that was cancelled."""
        if self.written.done():
            return
        if error is None:
            self.written.set_result(None)
        else:
            self.written.set_exception(error)


@dataclass(slots=True, kw_only=True)
class OpenStep:
    """One batch of instructions, and those of it that are pending."""

    run_id: int
    key: str
    group_id: str
    quorum: int
    deadline_at_s: float
    pending: dict[str, Pending] = field(default_factory=dict)
    updates: int = 0
    """Replies that are not errors, except those that the worker has refused."""
    refused: set[int] = field(default_factory=set)
    attached: bool = False
    ended: bool = False
    end_emitted: bool = False
    wait_emitted: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    watcher: asyncio.Task[None] | None = None
    arrived: list[ArrivedReply] = field(default_factory=list)
    """Answers that nobody writes yet."""
    writer: asyncio.Task[None] | None = None
    """Writes them, while there are any."""

    def take_arrived(self, count_max: int) -> list[ArrivedReply]:
        """Return the answers that arrived first, and remove them."""
        taken, self.arrived = self.arrived[:count_max], self.arrived[count_max:]
        return taken

    def blob_ids(self) -> set[str]:
        """Return the blobs that clients may still fetch."""
        pending = self.pending.values()
        return {blob.id for item in pending for blob in blobs_of(item.instruction.envelope)}

    def next_check_s(self, now_s: float) -> float | None:
        """Return the time of the next check, or None if the step is over.

        It is over when all clients have answered; when its quorum is met, and its deadline has
        passed or all missing clients are silent; or when both have happened without a quorum.
        """
        if not self.pending:
            return None
        late, lease_s = now_s >= self.deadline_at_s, self._lease_after_s(now_s)
        silent = lease_s is None
        if (late or silent) if self.updates >= self.quorum else (late and silent):
            return None
        future = [at for at in (self.deadline_at_s, lease_s) if at is not None and at > now_s]
        return min(future, default=now_s + 3600.0)

    def is_silent(self, now_s: float) -> bool:
        """Return whether the leases of all pending instructions have lapsed."""
        return self._lease_after_s(now_s) is None

    def _lease_after_s(self, now_s: float) -> float | None:
        """Return when a lease of a pending instruction lapses that has not yet, None if all have.

        It is the first one found, not the last to lapse: this is called at every answer, and finds
        it at once while the clients are there.
        """
        leases = (item.lease_until_s for item in self.pending.values())
        return next((until_s for until_s in leases if until_s > now_s), None)


def instruction_of(
    run: RunRow,
    ready: pb.WorkerReady,
    row: InstructionRow,
    *,
    clients: int,
    sites: PackedSites,
    app: pb.App | None = None,
    above: pb.Instruction | None = None,
) -> pb.Instruction:
    """Return the instruction for one of `clients` in this step, with the run's `sites`.

    Where the sample is secret, it announces the configured cohort instead of `clients`. A relay's
    says what the one `above` says.
    """
    if above is not None:
        passed_on = pb.Instruction()
        passed_on.CopyFrom(above)
        passed_on.id, passed_on.run_id = row.id, run.id
        passed_on.envelope.ParseFromString(row.envelope)
        return passed_on
    return pb.Instruction(
        id=row.id,
        run_id=run.id,
        app=app or pb.App(name=run.app, sha256=run.sha256),
        envelope=pb.Envelope.FromString(row.envelope),
        cohort_clients=ready.cohort or clients,
        sites=sites.count,
        site_nodes=sites.bitmap,
        joined_nodes=sites.joined,
        run_config=ready.run_config,
        secure_aggregation=ready.secure_aggregation,
        differential_privacy=ready.differential_privacy,
    )


def updates_in(asked: pb.Envelope, reply: pb.Envelope) -> int:
    """Return how many clients' updates a reply has: at most as many as it was asked for."""
    if reply.HasField("error"):
        return 0
    behind, answered = clients_behind(asked), clients_behind(reply)
    return 1 if behind is None else min(len(behind), len(answered or ()))


def accepted(item: Pending, reply: pb.Reply, spool: Spool, *, now_s: float) -> pb.Envelope:
    """Return the reply for the worker; a reply with a fault becomes an error reply."""
    if reply.WhichOneof("kind") not in ("envelope", "file"):
        text = f"refused by its owner: {reply.refused}"
        return addressed(item, failed(NODE_UNAVAILABLE, text), now_s=now_s)
    envelope = pb.Envelope()
    run_id, id_ = item.instruction.run_id, item.instruction.id
    try:
        if reply.HasField("file"):
            envelope = spool.envelope(run_id, id_, reply.file)
        else:
            envelope.CopyFrom(reply.envelope)
        check_fields(envelope)
        check_size(envelope)
        spool.check(run_id, id_, envelope)
    except ProtocolError as error:
        envelope = failed(REPLY_UNUSABLE, str(error))
    return addressed(item, envelope, now_s=now_s)


def addressed(item: Pending, envelope: pb.Envelope, *, now_s: float) -> pb.Envelope:
    """Return a reply with the metadata of its instruction, in place of the sender's."""
    asked = item.instruction.envelope.metadata
    envelope.metadata.CopyFrom(
        pb.Metadata(
            run_id=asked.run_id,
            src_node_id=item.node_id,
            dst_node_id=asked.src_node_id,
            reply_to_message_id=asked.message_id,
            message_id=f"{asked.message_id}-r",
            group_id=asked.group_id,
            created_at_s=now_s,
            ttl_s=asked.ttl_s,
            message_type=asked.message_type,
        )
    )
    return envelope


def failed(code: int, reason: str) -> pb.Envelope:
    """Return an error reply with this reason."""
    return pb.Envelope(error=pb.AppError(code=code, reason=reason[:REASON_CHARS_MAX]))
