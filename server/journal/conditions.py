"""Conditions of the server that last: each has an event for its beginning and one for its end.

Which conditions hold now follows from the events, so that a restart neither repeats nor forgets one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["CONDITIONS", "Condition", "standing"]

CONDITIONS: Final[Mapping[str, str]] = {
    "site_gone": "site_back",
    "certificate_ending": "certificate_renewed",
    "disk_low": "disk_recovered",
    "storage_near": "storage_recovered",
    "epsilon_near": "epsilon_recovered",
    "notify_failed": "notify_recovered",
}
"""The kind of the event with which a condition begins -> of the one with which it ends."""
_BEGINNINGS: Final = {end: begin for begin, end in CONDITIONS.items()}

Condition = tuple[str, str]
"""The kind of its beginning, and what it is about: a site's name, or empty."""


def standing(rows: Iterable[sqlite3.Row]) -> dict[Condition, dict[str, Any]]:
    """Return the conditions that have begun and not ended, with their details, from the server's events
    in their order."""
    found: dict[Condition, dict[str, Any]] = {}
    for row in rows:
        kind = row["kind"]
        if kind not in CONDITIONS and kind not in _BEGINNINGS:
            continue
        detail = json.loads(row["json"])
        about = str(detail.get("about", ""))
        if kind in CONDITIONS:
            found[kind, about] = detail
        else:
            found.pop((_BEGINNINGS[kind], about), None)
    return found
