"""Which clients of a run failed, and why: for the lines of metrics.jsonl and the run's summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..strategies.rounds.recorder import Row

__all__ = ["About", "FailedClients", "causes_in"]

KEPT_MAX = 20
"""Failed clients of a round that are listed; its "failures" counts all."""
CAUSES_MAX = 10
SITES_MAX = 5
"""Causes in a summary, and clients that are named with each."""
ROUNDS_MAX = 100
"""Rounds that failures may wait for: one or two, unless an app counts its rounds oddly."""
REFUSED = {"update_refused": "train", "evaluation_refused": "evaluate"}

About = Callable[[int], Mapping[str, str]]
"""Returns what is told of a client beside its number: its "site", and where its "log" is."""


class FailedClients:
    """Collects failures from a run's events until the row of their round is written."""

    def __init__(self) -> None:
        self._rounds: dict[int, list[dict[str, Any]]] = {}

    def take(self, kind: str, detail: Mapping[str, Any]) -> Mapping[str, Any]:
        """Note an event about a client, if it is a failure; return what is told of it.

        A log has more of what the app's own code did, and of nothing else.
        """
        if "fault" not in detail:
            detail = {key: value for key, value in detail.items() if key != "log"}
        if kind == "client_failed" or kind in REFUSED:
            during = detail.get("during") or REFUSED.get(kind, "train")
            reason = f"{detail.get('field') or ''} {detail.get('reason')}".strip()
            failure = {"client": detail["client"], "during": during, "reason": reason}
            for key in ("site", "fault"):
                if key in detail:
                    failure[key] = detail[key]
            self._keep(detail.get("round"), failure)
        return detail

    def _keep(self, number: object, failure: dict[str, Any]) -> None:
        if not isinstance(number, int):
            return
        if number not in self._rounds and len(self._rounds) >= ROUNDS_MAX:
            self._rounds.setdefault(number, self._rounds.pop(min(self._rounds)))
        kept = self._rounds.setdefault(number, [])
        kept.append(failure)
        kept.sort(key=lambda each: (each["client"], each["during"], each["reason"]))
        del kept[KEPT_MAX:]

    def added_to(self, row: Row) -> Row:
        """Return a round's row with its failures, and forget those."""
        failed = self._rounds.pop(row["round"], None)
        return {**row, "failed": failed} if failed else row

    def left(self) -> list[dict[str, Any]]:
        """Return the failures of rounds that have no row."""
        return [failure for failures in self._rounds.values() for failure in failures]


def causes_in(rows: Iterable[Row], others: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return why clients failed in a run, the most frequent cause first, by what rows list."""
    causes: dict[tuple[str, str], dict[str, Any]] = {}
    for failure in [*(each for row in rows for each in row.get("failed") or ()), *others]:
        key = failure["during"], failure["reason"]
        empty = {"during": key[0], "reason": key[1], "times": 0, "clients": []}
        cause = causes.setdefault(key, empty)
        cause["times"] += 1
        who = failure.get("site") or f"client {failure['client']}"
        if who not in cause["clients"] and len(cause["clients"]) < SITES_MAX:
            cause["clients"].append(who)
    return sorted(causes.values(), key=lambda each: -each["times"])[:CAUSES_MAX]
