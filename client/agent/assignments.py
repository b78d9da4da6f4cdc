"""The server's instructions to this client: a bounded queue, executed in order of arrival."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from ...errors import NOTHING_TO_EVALUATE, LimitError
from ...transport.fields import ID_CHARS_MAX
from ...transport.fleet_pb2 import AgentMessage, Cancel, Instruction, Progress, Reply
from ...transport.spans import NO_SPAN, Span
from ..owner.gate import Gate
from ..owner.sent_log import Outgoing, SentFor
from .delivery import Deliveries
from .events import Event, Report
from .execution import Execution, label_of
from .state import AgentState
from .uplink import Uplink

__all__ = ["INSTRUCTIONS_MAX", "OUTCOMES", "Assignments"]

INSTRUCTIONS_MAX = 64
OUTCOMES = ("answered", "refused", "failed", "cancelled")
CANCEL_GRACE_S = 2.0
"""Time that cancelled work has to end by itself, as a new training process takes longer."""
LEASE_BEATS = 4
"""The number of renewals within the length of a lease."""


class Assignments:
    """Takes instructions, executes them one by one, and delivers their replies.

    An instruction is *in hand* from its arrival until its reply is confirmed. In that time a
    second delivery of it has no effect, and its lease at the server is renewed - except while a
    training process does not report its progress.

    Attributes:
        outcomes: how many instructions ended in each of `OUTCOMES`, since the start.
    """

    def __init__(
        self,
        execution: Execution,
        deliveries: Deliveries,
        state: AgentState,
        uplink: Uplink,
        gate: Gate,
        report: Report,
        *,
        begin_span: Callable[[Instruction], Span] = lambda instruction: NO_SPAN,
    ) -> None:
        """`begin_span` begins the span of an instruction's execution and delivery."""
        self._begin_span = begin_span
        self._execution = execution
        self._deliveries = deliveries
        self._state = state
        self._uplink = uplink
        self._gate = gate
        self._report = report
        self._queued: dict[str, Instruction] = {}
        self._arrived = asyncio.Event()
        self._busy = asyncio.Event()
        self._current: Instruction | None = None
        self._task: asyncio.Task[Outgoing | None] | None = None
        self._unwanted: set[str] = set()
        self._stepped = True
        self.lease_s = 60.0
        self.outcomes: Counter[str] = Counter()

    async def accept(self, instruction: Instruction) -> None:
        """Take an instruction, unless it is in hand already.

        Raises:
            LimitError: its id is empty or too long.
        """
        id_ = instruction.id
        if not 0 < len(id_) <= ID_CHARS_MAX:
            raise LimitError(
                f"an instruction's id must have 1 to {ID_CHARS_MAX} characters, has {len(id_)}"
            )
        current = self._current is not None and self._current.id == id_
        if current or id_ in self._queued or id_ in self._deliveries:
            return
        if len(self._queued) >= INSTRUCTIONS_MAX:
            reply = Reply(
                instruction_id=id_, refused=f"{INSTRUCTIONS_MAX} instructions are waiting already"
            )
            await self._deliveries.try_to_send(Outgoing(reply, SentFor.of(instruction)))
            self.outcomes["refused"] += 1
            return
        self._queued[id_] = instruction
        self._arrived.set()
        self._busy.set()

    @property
    def waiting(self) -> int:
        """How many instructions wait for their execution."""
        return len(self._queued)

    def confirm(self, instruction_id: str) -> None:
        """Note that the server has the reply to an instruction."""
        self._deliveries.confirm(instruction_id)

    async def cancel(self, cancel: Cancel) -> None:
        """Drop an instruction: from the queue, from execution, or its reply on its way."""
        id_ = cancel.instruction_id
        self.outcomes["cancelled"] += self._queued.pop(id_, None) is not None
        if id_ in self._deliveries:
            self._deliveries.withdraw(id_)
            self._state.acknowledge(id_)
        if self._current is not None and self._current.id == id_ and id_ not in self._unwanted:
            self._unwanted.add(id_)
            text = f"{label_of(self._current.envelope)}: cancelled: {cancel.reason[:200]}"
            detail: dict[str, str | int | float] = {
                "run": self._current.run_id,
                "instruction": id_,
            }
            self._report(Event(kind="cancelled", text=text, detail=detail))
            if self._task is not None:
                asyncio.get_running_loop().call_later(CANCEL_GRACE_S, self._task.cancel)

    async def redeliver(self) -> None:
        """Send the recorded replies of an earlier agent process that were not confirmed."""
        for recorded in await asyncio.to_thread(self._state.unacknowledged):
            if recorded.instruction_id not in self._deliveries:
                await self._deliver(recorded.answer, label_of(recorded.envelope))

    async def work(self) -> None:
        """Execute the instructions of the queue, forever."""
        renewing = asyncio.create_task(self._renew_leases())
        try:
            while True:
                self._arrived.clear()
                while self._queued:
                    await self._gate.until_open()
                    if not self._queued:  # cancelled meanwhile
                        break
                    instruction = self._queued.pop(next(iter(self._queued)))
                    await self._do(instruction)
                await self._arrived.wait()
        finally:
            renewing.cancel()

    async def _do(self, instruction: Instruction) -> None:
        self._current = instruction
        span = self._begin_span(instruction)
        with span.present():
            delivering = await self._executed(instruction, span)
        if not delivering:
            span.end()
        self._current = self._task = None
        self._unwanted.discard(instruction.id)

    async def _executed(self, instruction: Instruction, span: Span) -> bool:
        """Execute an instruction; return whether a reply is being delivered, after which its span ends."""
        self._task = task = asyncio.create_task(self._execution.perform(instruction, self._step))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            span.end()
            raise
        answer = None if task.cancelled() else task.result()
        unwanted = instruction.id in self._unwanted
        outcome = "cancelled" if unwanted or answer is None else _outcome(answer.reply)
        self.outcomes[outcome] += 1
        span.set_outcome(outcome)
        if unwanted:
            self._state.acknowledge(instruction.id)
        elif answer is not None:
            await self._deliver(answer, label_of(instruction.envelope))
            return True
        return False

    async def _deliver(self, answer: Outgoing, label: str) -> None:
        self._busy.set()
        await self._deliveries.begin(answer, label=label)

    def _step(self) -> None:
        self._stepped = True

    async def _renew_leases(self) -> None:
        while True:
            await self._busy.wait()
            await asyncio.sleep(self.lease_s / LEASE_BEATS)
            ids = [*self._queued, *self._deliveries.ids()]
            silent = self._execution.training and not self._stepped
            if self._current is not None and not silent:
                ids.append(self._current.id)
            self._stepped = False
            if not ids and self._current is None:
                self._busy.clear()
            for id_ in ids:
                progress = AgentMessage(progress=Progress(instruction_id=id_))
                await self._uplink.try_to_send(progress)


def _outcome(reply: Reply) -> str:
    """Return which of `OUTCOMES` a reply is."""
    if reply.refused:
        return "refused"
    failed = reply.envelope.HasField("error")
    return "failed" if failed and reply.envelope.error.code != NOTHING_TO_EVALUATE else "answered"
