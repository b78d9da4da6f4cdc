"""What a plain Flower app's server side produces, seen from outside while it runs.

A Flower app reports nothing by itself: its `Result` stays inside of its main function. Here the
grid that it is given watches the messages go by and tells of each round, and `capture_result`
keeps what its strategy returns.

    with capture_result() as captured, ObservedGrid(grid, on_round=print) as observed:
        server_app(observed, context)
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from .flower_rounds import WEIGHT_KEY, RoundWatch, Traffic
from .run_grid import WrappedGrid
from .strategies.adapter import Evaluate, FederatedStrategy
from .strategies.recorder import Row

__all__ = ["Captured", "ObservedGrid", "capture_result"]


@dataclass(slots=True)
class Captured:
    """What strategies returned; `result` is the last one's, None before."""

    result: Result | None = None


@contextmanager
def capture_result() -> Iterator[Captured]:
    """Keep the `Result` of every Flower strategy that is started meanwhile.

    Edge cases: a strategy with a `start` of its own is seen if its class exists already; one
        that is defined later is seen if its `start` calls Flower's. Not for two threads at once.
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
    """Return a strategy's `start` that also tells the grid and `captured` what it does."""
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
    """A Grid that passes everything on to another one, and tells of each round (`RoundWatch`).

    Leaving it completes the last round; one that an exception interrupts has no row. What
    `on_round` raises ends the app.

    An app's own code gets replies as a list, as it would from Flower's own grids, so that it may
    count them or go through them twice. Meadow's strategies get them as they come, and hold no
    more of them than they need.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        on_round: Callable[[Row], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(grid)
        self._watch = RoundWatch(on_round, clock=clock, traffic=self._traffic)
        self._streams = False
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
        self._watch.complete(unless_open=kind is not None)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; their replies are fetched with `pull_messages`."""
        return self._grid.push_messages(self._outgoing(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived to these messages."""
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            self._watch.received(reply)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return their replies."""
        batch = self._outgoing(messages)
        replies = self._watch.watched(self._grid.send_and_receive(batch, timeout=timeout))
        return replies if self._streams else list(replies)

    # ------------------------------------------------------------------ what a strategy adds

    @contextmanager
    def following(self, strategy: Strategy) -> Iterator[None]:
        """Give replies, and weigh them, as this strategy does, until its `start` is over."""
        before = self._streams, self._watch.weight_key
        self._streams = isinstance(strategy, FederatedStrategy)
        self._watch.weight_key = getattr(strategy, "weighted_by_key", WEIGHT_KEY)
        try:
            yield
        finally:
            self._streams, self._watch.weight_key = before

    def observing(self, evaluate: Evaluate) -> Evaluate:
        """Return central evaluation whose metrics are in the round's row too."""

        def observed(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            self.last_arrays = arrays
            metrics = evaluate(server_round, arrays)
            self._watch.evaluated(server_round, metrics)
            return metrics

        return observed

    def _outgoing(self, messages: Iterable[Message]) -> list[Message]:
        batch = list(messages)
        self._watch.sending(batch)
        for message in batch[:1]:
            self.last_arrays = next(iter(message.content.array_records.values()), self.last_arrays)
        return batch

    def _traffic(self) -> Traffic:
        return getattr(self._grid, "bytes_sent", 0), getattr(self._grid, "bytes_received", 0)
