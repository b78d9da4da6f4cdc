"""What a grid may do beyond Flower's interface; a plain one does none of it.

wait_for_nodes(count)     waits until that many clients are connected, without polling
is_stopping() -> bool     whether the run is to end
cohort_of(group_id)       the clients that a round was begun with before a restart, if any
forget(group_id)          called when a group's messages are no longer needed: their round is durable,
                          or who still works on one is to stop
execute_pushed()          executes, in this process, what was pushed and not pulled so far
wait_for_replies(ids)     waits, without polling, until `pull_messages` has something for them, or
                          clients have come or gone
bytes_sent                all bytes so far, and
bytes_received            likewise
name_of(client)           what people call a client, None if it has no name
tags: Sequence[str]       the clients that are there are those that have all of them
combines_updates: bool    whether a reply may stand for many clients
adds_exactly: bool        whether such replies are exact sums, which only a mean can go on with
relay_of(client) -> int   the relay that a client is behind, 0 for none: one message goes to all
                          clients of a relay that are sent the same, and has one id
combines_in_groups: bool  whether such replies come one a group, with groups drawn at random:
                          then what needs single updates takes a group's for one

`virtual_time.py` has what a grid with a virtual clock does beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flwr.serverapp import Grid

from ...errors import ConfigError
from .failures import NameOf
from .selection import Selection

__all__ = [
    "adds_exactly",
    "combines_in_groups",
    "combines_updates",
    "forget_group",
    "is_stopping",
    "name_of",
    "recall_group",
    "refuse_tags",
    "relay_of",
    "traffic_bytes",
    "wait_without_polling",
    "waits_for_replies",
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


def name_of(grid: Grid) -> NameOf:
    """Return the function that names the grid's clients; clients of a plain grid have no names."""
    known = getattr(grid, "name_of", None)
    return known if callable(known) else lambda client: None


def waits_for_replies(grid: Grid, message_ids: Sequence[str]) -> bool:
    """Let the grid wait for one of these replies; return False if it cannot."""
    wait = getattr(grid, "wait_for_replies", None)
    if not callable(wait):
        return False
    wait(message_ids)
    return True


def recall_group(grid: Grid, group_id: str) -> list[int]:
    """Return whom a group was sent to before a restart; empty if it was not."""
    recall = getattr(grid, "cohort_of", None)
    known: Iterable[int] = recall(group_id) if callable(recall) else ()
    return sorted(known or ())


def forget_group(grid: Grid, group_id: str) -> None:
    """Let the grid forget a group of messages."""
    forget = getattr(grid, "forget", None)
    if callable(forget):
        forget(group_id)


def traffic_bytes(grid: Grid) -> tuple[int, int]:
    """Return the bytes sent and received so far; zeros if the grid does not count them."""
    return getattr(grid, "bytes_sent", 0), getattr(grid, "bytes_received", 0)


def refuse_tags(selection: Selection, grid: Grid) -> None:
    """Check that the grid has the clients that a selection asks for, and no others.

    Raises:
        ConfigError: it does not know of these tags, or is of others.
    """
    asked, met = selection.tags, tuple(getattr(grid, "tags", ()))
    if set(asked) != set(met):
        raise ConfigError(
            f"selection.tags asks for {', '.join(asked) or 'no tag'}, and {type(grid).__name__} has "
            f"clients with {', '.join(met) or 'any tags'}; remove selection.tags, or use Meadow's "
            "server or simulation"
        )


def combines_updates(grid: Grid) -> bool:
    """Return whether a reply may stand for many clients."""
    return bool(getattr(grid, "combines_updates", False))


def adds_exactly(grid: Grid) -> bool:
    """Return whether replies that stand for many clients are sums."""
    return bool(getattr(grid, "adds_exactly", False))


def relay_of(grid: Grid, client: int) -> int:
    """Return the relay that a client is behind, 0 for none."""
    known = getattr(grid, "relay_of", None)
    return int(known(client)) if callable(known) else 0


def combines_in_groups(grid: Grid) -> bool:
    """Return whether replies that stand for many clients come one a group."""
    return bool(getattr(grid, "combines_in_groups", False))
