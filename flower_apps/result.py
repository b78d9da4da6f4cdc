"""Observes a plain Flower app's server side while it runs: its rounds and its result.

A Flower app reports nothing: its `Result` is local to its main function. `ObservedGrid` therefore
derives each round from the messages that the app sends, and `capture_result` captures the `Result`
that its strategy returns.

    with capture_result() as captured, ObservedGrid(grid, on_round=print) as observed:
        server_app(observed, context)
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from threading import RLock
from types import TracebackType
from typing import Any, Self

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from ..flower.run_grid import WrappedGrid
from ..strategies.rounds.adapter import Evaluate, FederatedStrategy
from ..strategies.rounds.recorder import Row
from .answers import Answer
from .patience import Patience
from .rounds import WEIGHT_KEY, RoundWatch, Traffic

__all__ = ["Captured", "ObservedGrid", "capture_result"]


@dataclass(slots=True)
class Captured:
    """The last `Result` that a strategy returned; None before the first."""

    result: Result | None = None


@contextmanager
def capture_result() -> Iterator[Captured]:
    """Capture the `Result` of each Flower strategy that is started within the block.

    Edge cases: a strategy with a `start` of its own is seen if its class exists already; one
        that is defined later is seen if its `start` calls Flower's. Only one thread at a time.
    """
    captured = Captured()
    with ExitStack() as restored:
        for kind in _family(Strategy):  # type: ignore[type-abstract]  # none is made
            if start := vars(kind).get("start"):
                restored.callback(setattr, kind, "start", start)
                setattr(kind, "start", _observed(start, captured))  # noqa: B010  # for mypy
        yield captured


def _family(kind: type[Strategy]) -> set[type[Strategy]]:
    return {kind}.union(*(_family(child) for child in kind.__subclasses__()))


def _observed(start: Callable[..., Result], captured: Captured) -> Callable[..., Result]:
    """Return a strategy's `start` that also reports to the grid and to `captured`."""
    signature = inspect.signature(start)

    @functools.wraps(start)
    def observed(*args: Any, **kwargs: Any) -> Result:
        call = signature.bind(*args, **kwargs)
        grid = call.arguments.get("grid")
        with ExitStack() as followed:
            if isinstance(grid, ObservedGrid):
                followed.enter_context(grid.following(args[0]))
                if evaluate := call.arguments.get("evaluate_fn"):
                    call.arguments["evaluate_fn"] = grid.observing(evaluate)
            result = start(*call.args, **call.kwargs)
        if isinstance(result, Result):
            captured.result = result
        return result

    return observed


class ObservedGrid(WrappedGrid):
    """A Grid that passes everything on to another one, and reports each round (`RoundWatch`).

    Leaving it completes the last round; one that an exception interrupts has no row. What
    `on_round` raises ends the app.

    An app's own code gets replies as a list, as it would from Flower's own grids, so that it may
    count them or go through them twice. Meadow's strategies get them as they come, and hold no
    more of them than they need.

    Messages that are pushed are executed, pulled or not, before anything else is sent: a grid
    that executes them itself (`execute_pushed`) is notified when. An app may send from several
    threads; such a grid serves them one after another.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        on_round: Callable[[Row], None],
        on_answer: Callable[[Answer], None] = lambda answer: None,
        on_failure: Callable[[Mapping[str, Any]], None] = lambda detail: None,
        clock: Callable[[], float] = time.monotonic,
        on_waiting: Callable[[int], None] = lambda connected: None,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`around` is entered where the grid executes messages itself, in this process.

        `on_waiting` is called with the number of clients while the app only looks for them.
        """
        super().__init__(grid)
        self.watch = RoundWatch(
            on_round, clock=clock, traffic=self._traffic, on_answer=on_answer, on_failure=on_failure
        )
        self._streams = False
        self._execute_pushed = getattr(grid, "execute_pushed", None)
        self._lock = RLock()
        self._around = around
        self.patience = Patience(simulated=self._execute_pushed is not None, tell=on_waiting)
        self._unanswered: set[str] = set()
        """Messages that were pushed; who pulls them waits for something."""
        self.last_arrays: ArrayRecord | None = None
        """The newest params that clients, or central evaluation, were given."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            with self._turn():
                self._catch_up()
        self.watch.complete(unless_open=kind is not None)

    def get_node_ids(self) -> Iterable[int]:
        """Return the clients that are there."""
        ids = self._grid.get_node_ids()
        ids = ids if isinstance(ids, Sequence) else list(ids)
        self.patience.saw(len(ids))
        return ids

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the clients that are there, with what is known of them."""
        nodes = list(self._grid.get_nodes())
        self.patience.saw(len(nodes))
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; their replies are fetched with `pull_messages`."""
        with self._turn():
            batch = self._outgoing(messages)
            ids = list(self._grid.push_messages(batch))
        self.watch.pushed(ids, batch)
        self._unanswered.update(ids)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived to these messages."""
        ids = list(message_ids)
        with self._turn():
            self._catch_up()
            replies = list(self._grid.pull_messages(ids))
        self.watch.pulled(ids, replies)
        self._unanswered -= {reply.metadata.reply_to_message_id for reply in replies}
        if replies or not self._unanswered.isdisjoint(ids):
            self.patience.goes_on()
        else:
            self.patience.saw_no_reply()
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return their replies."""
        with self._turn():
            self._catch_up()
            batch = self._outgoing(messages)
            replies = self.watch.watched(batch, self._grid.send_and_receive(batch, timeout=timeout))
            return self._streamed(replies) if self._streams else list(replies)

    @property
    def clients_max(self) -> int | None:
        """How many clients there will ever be, where they all live in this process."""
        return None if self._execute_pushed is None else len(list(self._grid.get_node_ids()))

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Serve one thread after another where this process executes what is sent."""
        if self._execute_pushed is None:
            yield
            return
        with self._lock, self._around():
            yield

    def _streamed(self, replies: Iterable[Message]) -> Iterator[Message]:
        with nullcontext() if self._execute_pushed is None else self._around():
            yield from replies

    def _catch_up(self) -> None:
        """Have what was pushed executed; Meadow's own strategies say when what they push is due."""
        if self._execute_pushed is not None and not self._streams:
            self._execute_pushed()

    # ------------------------------------------------------------------ what a strategy adds

    @contextmanager
    def following(self, strategy: Strategy) -> Iterator[None]:
        """Give replies, and weigh them, as this strategy does, until its `start` is over."""
        before = self._streams, self.watch.weight_key
        self._streams = isinstance(strategy, FederatedStrategy)
        self.watch.weight_key = getattr(strategy, "weighted_by_key", WEIGHT_KEY)
        try:
            yield
        finally:
            self._streams, self.watch.weight_key = before

    def observing(self, evaluate: Evaluate) -> Evaluate:
        """Return central evaluation whose metrics are in the round's row too."""

        def observed(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            self.last_arrays = arrays
            metrics = evaluate(server_round, arrays)
            self.watch.aggregated("server", server_round, metrics or {})
            return metrics

        return observed

    def _outgoing(self, messages: Iterable[Message]) -> list[Message]:
        batch = list(messages)
        if batch:
            self.patience.goes_on()
        self.watch.sending(batch)
        for message in batch[:1]:
            self.last_arrays = next(iter(message.content.array_records.values()), self.last_arrays)
        return batch

    def _traffic(self) -> Traffic:
        return getattr(self._grid, "bytes_sent", 0), getattr(self._grid, "bytes_received", 0)
