"""Clients that failed in a round: the event of each, and how several are listed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Error, MessageType

__all__ = ["NameOf", "failure_detail", "listed", "named", "printable"]

APP_FAULTS = {1: "not loaded", 2: "raised", 8: "crashed"}
"""What an app's own code did, by error code: its output has more. Source: flwr 1.41, ErrorCode."""
REASON_CHARACTERS_MAX = 300
FAILURES_NAMED_MAX = 5

NameOf = Callable[[int], str | None]
"""Returns what people call a client, None if it has no name but its number."""


def failure_detail(
    number: int,
    client: int,
    reason: str,
    *,
    during: str = MessageType.TRAIN,
    error: Error | None = None,
) -> dict[str, Any]:
    """Return the detail of the event "client_failed".

    "during" is there where it was not training, and "fault" where the app's own code failed.
    """
    detail: dict[str, Any] = {"round": number, "client": client, "reason": reason}
    if during != MessageType.TRAIN:
        detail["during"] = during
    if error is not None and error.code in APP_FAULTS:
        detail["fault"] = APP_FAULTS[error.code]
    return detail


def named(failures: Mapping[int, str], name_of: NameOf = lambda client: None) -> str:
    """List the first few failures, those for the same reason together."""
    if not failures:
        return ""
    shown = sorted(failures)[:FAILURES_NAMED_MAX]
    alike: dict[str, list[int]] = {}
    for client in shown:
        alike.setdefault(failures[client], []).append(client)
    texts = [f"{listed(clients, name_of)}: {reason}" for reason, clients in alike.items()]
    if len(failures) > len(shown):
        texts.append(f"and {len(failures) - len(shown)} more")
    return f" ({'; '.join(texts)})"


def listed(clients: list[int], name_of: NameOf) -> str:
    """Return clients by their names, and those without one as "clients 1, 2"."""
    names = {client: name_of(client) for client in clients}
    numbers = [str(client) for client, name in names.items() if name is None]
    texts = [name for name in names.values() if name is not None]
    if numbers:
        texts.append(f"client{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}")
    return ", ".join(texts)


def printable(text: str | None) -> str:
    """Return a peer's text as one line of bounded length."""
    line = " ".join((text or "").split())
    shown = "".join(character if character.isprintable() else "?" for character in line)
    return shown[:REASON_CHARACTERS_MAX] or "no reason given"
