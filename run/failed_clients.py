"""Which clients of a run failed, and why: for metrics.jsonl and the run's summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..strategies.rounds.recorder import Row

__all__ = ["About", "FailedClients", "causes_in"]

KEPT_MAX = 20
"""Bound of the failed clients listed for a round; its "failures" counts all."""
CAUSES_MAX = 10
SITES_MAX = 5
"""Bounds of the causes in a summary, and of the clients named with each."""
ROUNDS_MAX = 100
"""Bound of the rounds whose rows are not yet written; usually one or two."""
REFUSED = {"update_refused": "train", "evaluation_refused": "evaluate"}

About = Callable[[int], Mapping[str, str]]
"""Returns the details of a client for its events: its "site", and where its "log" is."""


class FailedClients:
    """Collects failures from a run's events until the row of their round is written."""

    def __init__(self) -> None:
        self._rounds: dict[int, list[dict[str, Any]]] = {}

    def take(self, kind: str, detail: Mapping[str, Any]) -> Mapping[str, Any]:
        """Note an event about a client if it is a failure; return its details as emitted.

        "log" stays only in failures of the app's own code, as the log covers nothing else.
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
        failures = self._rounds.setdefault(number, [])
        failures.append(failure)
        failures.sort(key=lambda each: (each["client"], each["during"], each["reason"]))
        del failures[KEPT_MAX:]

    def added_to(self, row: Row) -> Row:
        """Return a round's row with its failures, which are then dropped here."""
        failed = self._rounds.pop(row["round"], None)
        return {**row, "failed": failed} if failed else row

    def left(self) -> list[dict[str, Any]]:
        """Return the failures of rounds that have no row."""
        return [failure for failures in self._rounds.values() for failure in failures]


def causes_in(rows: Iterable[Row], others: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the causes of the failures in `rows` and `others`, the most frequent first."""
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
