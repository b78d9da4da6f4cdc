"""Flower waits for clients that are missing; where none will ever come, that is told at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from flwr.server import SimpleClientManager
from flwr.serverapp.strategy import strategy_utils

from .errors import QuorumError

__all__ = ["never_more_than"]

STRATEGIES = "flwr.serverapp.strategy"


@contextmanager
def never_more_than(count: int | None) -> Iterator[None]:
    """Have Flower's strategies raise where they would wait for more than `count` clients.

    Edge cases: with None they wait, as ever; so does a loop of an app's own.
    Raises:
        QuorumError: they do.
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
