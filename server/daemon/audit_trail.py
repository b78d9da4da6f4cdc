"""Writes calls to the audit log, off the event loop.

An action is recorded before it begins, so that none is made without a line, and again when it has
ended. Reads and refusals are recorded at a limited rate, each line with the number of similar ones
that have no line, so that nobody can push other lines out of the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from ...errors import StoreError
from ...transport import fleet_pb2 as pb
from ..journal.audit_log import AuditLog
from .audit_limiter import Allowance

__all__ = ["AuditTrail", "Ended", "summary_of"]

LOG = logging.getLogger("meadow.server")
SIMILAR_BURST = 10
SIMILAR_EVERY_S = 60.0
"""After `SIMILAR_BURST` similar lines, one in this time."""
REFUSED_BURST = 100
REFUSED_EVERY_S = 10.0
"""After `REFUSED_BURST` refusals of clients and strangers together, one line in this time."""
UNRECORDED_MAX = 10_000
Ended = Callable[[Mapping[str, Any]], None]


class AuditTrail:
    """The audit log as the daemon's calls write it."""

    def __init__(self, log: AuditLog, *, clock: Callable[[], float]) -> None:
        self._log = log
        self._similar = Allowance(burst=SIMILAR_BURST, every_s=SIMILAR_EVERY_S, clock=clock)
        self._refused = Allowance(burst=REFUSED_BURST, every_s=REFUSED_EVERY_S, clock=clock)
        self._unrecorded: Counter[Hashable] = Counter()

    @asynccontextmanager
    async def action(
        self, *, who: str, role: str, call: str, what: Mapping[str, Any], address: str
    ) -> AsyncIterator[Ended]:
        """Record an action before and after the block, which says what has come of it.

        Raises:
            StoreError: the log cannot be written; the block does not run.
        """
        caller = {"who": who, "role": role, "call": call, "address": address}
        beginning = asyncio.ensure_future(
            asyncio.to_thread(self._log.append, what=what, outcome="begun", **caller)
        )
        result: dict[str, Any] = {}
        outcome = "ok"
        try:
            await asyncio.shield(beginning)
        except asyncio.CancelledError:  # its line is written all the same
            with suppress(StoreError):
                result["of"] = await beginning
                await self.done(what=result, outcome="cancelled", **caller)
            raise
        result["of"] = beginning.result()
        try:
            yield result.update
        except BaseException as error:
            outcome = "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
            if not isinstance(error, grpc.aio.BaseError | asyncio.CancelledError):
                result["reason"] = type(error).__name__
            raise
        finally:
            await self.done(what=result, outcome=outcome, **caller)

    async def done(self, **fields: Any) -> None:
        """Record how an action has ended, also if its call is cancelled meanwhile."""
        writing = asyncio.ensure_future(asyncio.to_thread(self._log.append, **fields))
        try:
            await asyncio.shield(writing)
        except StoreError as error:  # the action is made: its caller is told what has come of it
            LOG.error("%s; the end of %s is not in the audit log", error, fields["call"])

    async def read(
        self, *, who: str, role: str, call: str, what: Mapping[str, Any], address: str
    ) -> None:
        """Record a read, at a limited rate; a full disk does not end it."""
        if self._similar.take(("read", who, call)):
            await self._append(
                ("read", who, call),
                who=who, role=role, call=call, what=what, outcome="read", address=address,
            )  # fmt: skip
        else:
            self._count(("read", who, call))

    async def refused(
        self, *, who: str, role: str, call: str, what: Mapping[str, Any], address: str = ""
    ) -> None:
        """Record a refusal, at a limited rate; all callers without a certificate share theirs.

        All clients share a further one, so that none of theirs can hide one of somebody with a role.
        """
        is_client = role in ("", "client")
        if self._similar.take(("refused", who, role)) and not (
            is_client and not self._refused.take(None)
        ):
            await self._append(
                "refused",
                who=who, role=role, call=call, what=what, outcome="refused", address=address,
            )  # fmt: skip
        else:
            self._count("refused")

    def _count(self, kind: Hashable) -> None:
        if kind in self._unrecorded or len(self._unrecorded) < UNRECORDED_MAX:
            self._unrecorded[kind] += 1

    async def _append(self, kind: Hashable, *, what: Mapping[str, Any], **fields: str) -> None:
        count = self._unrecorded.pop(kind, 0)
        also = {"unrecorded_before": count} if count else {}
        try:
            await asyncio.to_thread(self._log.append, what={**what, **also}, **fields)
        except StoreError as error:
            self._unrecorded[kind] += count + 1
            LOG.error("%s; %s is not in the audit log", error, fields["call"])


def summary_of(message: Message) -> dict[str, Any]:
    """Return what a request or an answer is about; no values of settings, which may be secret."""
    if isinstance(message, pb.SubmitMessage):
        opened = message.open
        keys = [setting.partition("=")[0] for setting in opened.settings]
        signed = bool(opened.signature)
        return {"app": opened.name, "bytes": opened.size_bytes, "settings": keys, "signed": signed}
    if isinstance(message, pb.Run):
        return {"run": message.id, "sha256": message.sha256, "status": message.status}
    if isinstance(message, pb.SiteTags):
        return {"client": message.name, "tags": list(message.tags)}
    if isinstance(message, pb.SiteName):
        return {"client": message.name}
    if isinstance(message, pb.InviteRequest):  # of the invitation itself nothing: it is a secret
        return {"client": message.name, "hours": f"{message.hours:g}"}
    if isinstance(message, pb.RunId):
        return {"run": message.id}
    if isinstance(message, pb.PullRequest):
        return {"run": message.run_id}
    return {}
