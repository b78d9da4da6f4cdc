"""What a grid may do beyond Flower's interface; a plain one does none of it.

wait_for_nodes(count)     waits until that many clients are connected, without polling
is_stopping() -> bool     whether the run is to end
cohort_of(group_id)       the clients that a round was begun with before a restart, if any
forget(group_id)          hears that a round is durable: its messages are no longer needed
bytes_sent                all bytes so far, and
bytes_received            likewise
tags: Sequence[str]       the clients that are there are those that have all of them
combines_updates: bool    whether a reply may stand for many clients
combines_in_groups: bool  whether such replies come one a group, with groups drawn at random:
                          then what needs single updates takes a group's for one

`virtual_time.py` has what a grid with a virtual clock does beside.
"""

from __future__ import annotations

from collections.abc import Iterable

from flwr.serverapp import Grid

__all__ = [
    "combines_in_groups",
    "combines_updates",
    "forget_round",
    "is_stopping",
    "recall_cohort",
    "tags_of",
    "traffic_bytes",
    "wait_without_polling",
]


def wait_without_polling(grid: Grid, count: int) -> bool:
    """Let the grid wait for clients; return False if it cannot."""
    wait = getattr(grid, "wait_for_nodes", None)
    if not callable(wait):
        return False
    wait(count)
    return True


def is_stopping(grid: Grid) -> bool:
    """Return whether the grid wants the run to end."""
    asked = getattr(grid, "is_stopping", None)
    return bool(asked()) if callable(asked) else False


def recall_cohort(grid: Grid, round_number: int) -> list[int]:
    """Return whom a round was begun with before a restart; empty if it has not begun."""
    recall = getattr(grid, "cohort_of", None)
    known: Iterable[int] = recall(str(round_number)) if callable(recall) else ()
    return sorted(known or ())


def forget_round(grid: Grid, round_number: int) -> None:
    """Tell the grid that a round is durable."""
    forget = getattr(grid, "forget", None)
    if callable(forget):
        forget(str(round_number))


def traffic_bytes(grid: Grid) -> tuple[int, int]:
    """Return the bytes sent and received so far; zeros if the grid does not count them."""
    return getattr(grid, "bytes_sent", 0), getattr(grid, "bytes_received", 0)


def tags_of(grid: Grid) -> tuple[str, ...]:
    """Return the tags that all clients of the grid have, of those that were asked for."""
    return tuple(getattr(grid, "tags", ()))


def combines_updates(grid: Grid) -> bool:
    """Return whether a reply may stand for many clients."""
    return bool(getattr(grid, "combines_updates", False))


def combines_in_groups(grid: Grid) -> bool:
    """Return whether replies that stand for many clients come one a group."""
    return bool(getattr(grid, "combines_in_groups", False))
