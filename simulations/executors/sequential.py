"""The sequential executor: one client after another, in the order of the messages.

It is the reference for every other way of running clients.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ...errors import AppError
from ...flower.messages import content_bytes, own_copy
from ...randomness.seeded import seeded
from ...training.local.app import TaskApp
from ..population.clients import SimulatedClients
from .contract import EventSink, error_reply

if TYPE_CHECKING:
    from ...training.local.site import SiteTraining

__all__ = ["SequentialExecutor"]

TOGETHER_BYTES = 1 << 20
TOGETHER_MAX = 64
TOGETHER_S = 0.05
"""So many replies, as large as what was sent, are handed over together, unless it takes longer.

Small clients train in less time if what reads their instructions and checks their replies does not run
in between: it would take their place in the processor's caches."""


class SequentialExecutor:
    """Runs a ClientApp, Meadow's or anybody's, in this process.

    With more than one of `threads` torch computes with so many; with one, as the process does.
    """

    name = "sequential"
    combines = False

    def __init__(
        self,
        client_app: ClientApp,
        clients: SimulatedClients,
        *,
        threads: int = 1,
        sink: EventSink | None = None,
    ) -> None:
        self._client_app = client_app
        self._clients = clients
        self._threads = threads
        self._sink = sink or EventSink()

    def execute(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Run a client, or a few of a task with small params, whenever a reply is asked for."""
        left = iter(messages)
        for first in left:
            turns = deque([self._begun(first)])
            if turns[0].training is not None:
                count = min(TOGETHER_MAX, TOGETHER_BYTES // max(1, content_bytes(first)))
                turns.extend(map(self._begun, islice(left, max(0, count - 1))))
            while turns:
                yield from self._answers(turns)

    def close(self) -> None:
        """Nothing is held."""

    def _answers(self, turns: deque[_Turn]) -> list[Message]:
        """Run clients until it takes too long, and return their replies."""
        before, done = torch.get_num_threads(), list[_Turn]()
        # Keeping the generators takes as long as seeding them: once, if nobody draws between clients.
        inside = len(turns) > 1 and all(turn.draws_alone for turn in turns)
        run = partial(self._run, inside=inside)
        begun_s = now_s = time.perf_counter()
        if self._threads > 1:
            torch.set_num_threads(self._threads)
        try:
            with seeded(0) if inside else nullcontext():
                while turns and now_s - begun_s < TOGETHER_S:
                    turn = turns.popleft()
                    self._attempt(run, turn)
                    done.append(turn)
                    last_s, now_s = now_s, time.perf_counter()
                    self._sink.took(turn.node_id, now_s - last_s)
        finally:
            if self._threads > 1:
                torch.set_num_threads(before)
        for turn in done:
            self._attempt(self._finish, turn)
        return [turn.answer() for turn in done]

    def _attempt(self, part: Callable[[_Turn], None], turn: _Turn) -> None:
        if turn.reply is None:
            try:
                part(turn)
            except Exception as error:  # a client app may raise anything
                turn.reply = error_reply(turn.message, error, self._sink)

    def _begun(self, message: Message) -> _Turn:
        turn = _Turn(message)
        self._attempt(self._begin, turn)
        return turn

    def _begin(self, turn: _Turn) -> None:
        """Read the instruction, of a task; anybody's ClientApp does it all when it is called."""
        app = self._client_app
        turn.context = context = self._clients.stateless_context_of(turn.node_id)
        turn.message.content = own_copy(turn.message.content)
        turn.training = app.begin(turn.message, context) if isinstance(app, TaskApp) else None

    def _run(self, turn: _Turn, *, inside: bool) -> None:
        """Train, or call the app, with what the client keeps."""
        context = turn.context
        context.state = self._clients.state_of(turn.node_id)
        if turn.training is not None:
            turn.training.train(context.state, inside=inside)
            self._clients.keep_state(turn.node_id, context.state)
            return
        reply: object = self._client_app(turn.message, context)
        if not isinstance(reply, Message):
            raise AppError(
                f"the ClientApp answered with a {type(reply).__name__}, not with a Message; does the "
                "function that it calls return its reply?"
            )
        self._clients.keep_state(turn.node_id, context.state)
        turn.reply = reply

    def _finish(self, turn: _Turn) -> None:
        assert turn.training is not None
        turn.reply = turn.training.reply()


class _Turn:
    """A message to a client, and how far its answer has come."""

    __slots__ = ("context", "message", "node_id", "reply", "training")

    context: Context

    def __init__(self, message: Message) -> None:
        self.message = message
        self.node_id = message.metadata.dst_node_id
        self.training: SiteTraining | None = None
        self.reply: Message | None = None

    @property
    def draws_alone(self) -> bool:
        """Whether nobody's code draws random numbers but a task's training; or nothing runs any more."""
        return self.training.draws_alone if self.training is not None else self.reply is not None

    def answer(self) -> Message:
        assert self.reply is not None, "every turn ends in a reply"
        return self.reply
