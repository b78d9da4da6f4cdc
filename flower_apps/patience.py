"""Bounds how long an app waits for missing clients or replies; where none can come, it fails at
once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from flwr.server import SimpleClientManager
from flwr.serverapp.strategy import strategy_utils

from ..errors import QuorumError

__all__ = ["Patience", "never_more_than"]

SIMULATED_S = 60.0
"""How long an app may look for clients or replies in a simulation, where no more will ever come."""
DEPLOYED_S = 24 * 3600.0
"""The same on a server, where sites may still be enrolled; Flower's older strategies wait as long."""
REPORT_AFTER_S = 5.0
REPORT_EVERY_S = 60.0
GAP_S = 60.0
"""An app that does something else for longer than this does not only wait."""


class Patience:
    """Measures how long an app only looks for clients or replies, and bounds that time."""

    def __init__(
        self,
        *,
        simulated: bool,
        tell: Callable[[int], None] = lambda connected: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tell` is called at intervals with the number of clients while an app waits for them."""
        self._simulated = simulated
        self._bound_s = SIMULATED_S if simulated else DEPLOYED_S
        self._tell = tell
        self._clock = clock
        self._last_s: float | None = None
        self._waited_s = 0.0
        self._tell_at_s = REPORT_AFTER_S
        self.clients_max = -1
        """The most clients that the app has seen; -1 if it never looked."""

    def goes_on(self) -> None:
        """Note that the app has sent something, or has got a reply."""
        self._last_s, self._waited_s, self._tell_at_s = None, 0.0, REPORT_AFTER_S

    def saw(self, clients: int) -> None:
        """Note that the app has looked for clients, and how many are there.

        Raises:
            QuorumError: it has done nothing else for too long.
        """
        self.clients_max = max(self.clients_max, clients)
        if self._is_over():
            end = (
                "no more will come; simulate more with --clients"
                if self._simulated
                else ("`meadow site list` shows who is connected")
            )
            raise QuorumError(
                f"the app did nothing for {self._waited_s:.0f} s but look for clients: there are "
                f"{clients}, and {end}"
            )
        if self._waited_s >= self._tell_at_s:
            self._tell_at_s = self._waited_s + REPORT_EVERY_S
            self._tell(clients)

    def saw_no_reply(self) -> None:
        """Note that the app has looked for replies of which none is under way.

        Raises:
            QuorumError: it has done nothing else for too long.
        """
        if self._is_over():
            raise QuorumError(
                f"the app did nothing for {self._waited_s:.0f} s but look for replies, and none is "
                "under way: those to all messages that it sent have been given to it"
            )

    def _is_over(self) -> bool:
        now_s = self._clock()
        gap_s = 0.0 if self._last_s is None else now_s - self._last_s
        self._waited_s = self._waited_s + gap_s if gap_s <= GAP_S else 0.0
        self._last_s = now_s
        return self._waited_s > self._bound_s


STRATEGIES = "flwr.serverapp.strategy"


@contextmanager
def never_more_than(count: int | None) -> Iterator[None]:
    """Make Flower's strategies raise where they would wait for more than `count` clients.

    Edge cases: with None they wait, and `Patience` bounds that, as it bounds an app's own loop.
    Raises:
        QuorumError: a strategy would wait for more.
    """
    with ExitStack() as restored:
        if count is not None:
            _replace(restored, SimpleClientManager, "wait_for", _wait_for(count))
            plain = strategy_utils.sample_nodes
            for name, module in list(sys.modules.items()):
                if name.startswith(STRATEGIES) and getattr(module, "sample_nodes", None) is plain:
                    _replace(restored, module, "sample_nodes", _sample_nodes(count))
        yield


def _replace(
    restored: ExitStack, owner: Any, name: str, wrapper: Callable[..., Callable[..., Any]]
) -> None:
    plain = getattr(owner, name)
    restored.callback(setattr, owner, name, plain)
    setattr(owner, name, wraps(plain)(wrapper(plain)))


def _check(wanted: int, count: int) -> None:
    if wanted > count:
        raise QuorumError(
            f"the app's strategy waits for {wanted} clients, and there are {count}; simulate more "
            "with --clients, or lower what the strategy wants"
        )


def _wait_for(count: int) -> Callable[..., Callable[..., bool]]:
    def wrapper(plain: Callable[..., bool]) -> Callable[..., bool]:
        def wait_for(manager: Any, num_clients: int, *given: Any, **named: Any) -> bool:
            _check(num_clients, count)
            return plain(manager, num_clients, *given, **named)

        return wait_for

    return wrapper


def _sample_nodes(count: int) -> Callable[..., Callable[..., Any]]:
    def wrapper(plain: Callable[..., Any]) -> Callable[..., Any]:
        def sample_nodes(grid: Any, min_available_nodes: int, sample_size: int) -> Any:
            _check(max(min_available_nodes, sample_size), count)
            return plain(grid, min_available_nodes, sample_size)

        return sample_nodes

    return wrapper
