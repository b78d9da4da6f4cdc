"""What a person reads of runs: events as sentences, moments, sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

__all__ = ["amount", "epsilon_text", "moment", "sentence_of"]

Detail = Mapping[str, Any]
CALENDAR_END_S = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()


def sentence_of(kind: str, detail: Detail) -> str | None:
    """Return what an event means; None for events that only programs care about."""
    write = _SENTENCES.get(kind)
    return None if write is None else write(detail)


def moment(at_s: float) -> str:
    """Return a moment as text, "-" for never; one outside of the calendar, as its end."""
    if not at_s:
        return "-"
    within_s = min(max(at_s, 0.0), CALENDAR_END_S)
    return datetime.fromtimestamp(within_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def amount(size_bytes: float) -> str:
    """Return a size in bytes as people say it: 12.3 kB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000 or unit == "GB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    raise AssertionError("unreachable")


def epsilon_text(epsilon: float | None) -> str:
    """Return an epsilon, rounded up, for people; None is that of rounds without noise."""
    return "unbounded" if epsilon is None else f"{math.ceil(epsilon * 1e4 - 1e-9) / 1e4:.4g}"


def _of_client(detail: Detail) -> str:
    who = detail.get("site") or f"client {detail.get('client')}"
    return f"round {detail.get('round')}: {who}"


def _failed(detail: Detail) -> str:
    what = {"evaluate": " to evaluate", "query": " to answer"}.get(detail.get("during", ""), "")
    log = f"; the rest is in {detail['log']}" if detail.get("log") else ""
    return f"{_of_client(detail)} failed{what}: {detail.get('reason')}{log}"


def _refused(what: str) -> Callable[[Detail], str]:
    def write(detail: Detail) -> str:
        reason = f"{detail.get('field') or ''} {detail.get('reason')}".strip()
        return f"{_of_client(detail)}: {what} refused: {reason}"

    return write


def _clipped(detail: Detail) -> str:
    return (
        f"{_of_client(detail)}: update clipped from norm {detail.get('norm'):g} to "
        f"{detail.get('norm_max'):g}"
    )


def _executor(detail: Detail) -> str:
    workers = detail.get("workers")
    return f"{detail.get('executor')}{f' in {workers} processes' if workers else ''}"


def _of(detail: Detail) -> str:
    return str(detail.get("about") or "")


def _days_left(detail: Detail) -> str:
    days = detail.get("days")
    return f"in {days:.1f} days" if isinstance(days, float) and days > 0 else "now"


def _receiver(detail: Detail) -> str:
    return {"url": "the webhook", "command": "the command"}.get(_of(detail), _of(detail))


def _compressed(detail: Detail) -> str:
    ways = [word for way, word in _WAYS.items() if detail.get(way) == "int8"]
    slow = f"slow lines, int8 {' and '.join(ways)}: {detail['slow']}" if detail.get("slow") else ""
    fast = detail.get("no_longer_slow")
    fast = f"no longer slow, not compressed: {fast}" if fast else ""
    return f"round {detail.get('round')}: {'; '.join(filter(None, [slow, fast]))}"


_WAYS = {"upload": "up", "download": "down"}


def _waiting(detail: Detail) -> str:
    if "needed" not in detail:  # a loop of the app's own
        return f"the app waits for clients: {detail.get('connected')} are there"
    return f"waiting for clients: {detail.get('connected')} of {detail.get('needed')}"


def _committed(detail: Detail) -> str:
    failures = detail.get("failures") or 0
    failed = f" ({failures} failed)" if failures else ""
    return f"round {detail.get('round')} is done: clients {detail.get('clients', 0)}{failed}"


_SENTENCES: Mapping[str, Callable[[Detail], str]] = {
    "tracking_failed": lambda d: (
        f"{d.get('tracker')} did not take the run's rounds: {d.get('reason')}; the run goes on, and "
        f"`{d.get('remedy')}` copies what is missing"
    ),
    "checkpoint_damaged": lambda d: (
        f"{d.get('file')} is damaged ({d.get('reason')}); going back to the checkpoint before it"
    ),
    "app_raised": lambda d: f"the app raised {d.get('reason')}; the rest is in {d.get('log')}",
    "client_failed": _failed,
    "compression_chosen": _compressed,
    "early_stopped": lambda d: f"stopped early: {d.get('cause')}",
    "evaluation_refused": _refused("evaluation"),
    "round_committed": _committed,
    "status": lambda d: f"{d.get('status')}{': ' if d.get('cause') else ''}{d.get('cause') or ''}",
    "resumed": lambda d: f"going on after round {d.get('round')}",
    "round_waits": lambda d: (
        f"round {d.get('round')} needs {d.get('quorum')} clients and has {d.get('updates')}: no sign of "
        f"life of {', '.join(map(str, d.get('missing_sites') or d.get('missing', [])))}"
    ),
    "disk_needed": lambda d: (
        f"the run takes up to {amount(d.get('server_bytes', 0))} of the server's disk, which has "
        f"{amount(d.get('free_bytes', 0))} free, and {amount(d.get('client_bytes', 0))} of a client's"
    ),
    "stopping": lambda d: f"stopping after {d.get('after')}",
    "update_clipped": _clipped,
    "site_gone": lambda d: f"{_of(d)} has been away for {d.get('minutes', 0):g} minutes",
    "site_back": lambda d: f"{_of(d)} is back",
    "certificate_ending": lambda d: (
        f"the certificate of {_of(d)} ends {_days_left(d)}: {d.get('remedy')}"
    ),
    "certificate_renewed": lambda d: f"the certificate of {_of(d)} is valid for long again",
    "disk_low": lambda d: (
        f"the server's disk has {amount(d.get('free_bytes', 0))} free: make room, before it is full"
    ),
    "disk_recovered": lambda d: (
        f"the server's disk has {amount(d.get('free_bytes', 0))} free again"
    ),
    "storage_near": lambda d: (
        f"the server's folder has {amount(d.get('used_bytes', 0))} of its quota of "
        f"{amount(d.get('bytes_max', 0))}: `meadow server prune`, before no run begins"
    ),
    "storage_recovered": lambda d: (
        f"the server's folder has {amount(d.get('used_bytes', 0))} of its quota of "
        f"{amount(d.get('bytes_max', 0))} again"
    ),
    "pruned": lambda d: "its app, checkpoints, model and logs were deleted, as [storage] says",
    "epsilon_near": lambda d: (
        f"all runs together cost a {_of(d)} epsilon = {d.get('epsilon')}, of at most {d.get('bound')}: "
        "runs that need more are refused"
    ),
    "epsilon_recovered": lambda d: (
        f"epsilon of a {_of(d)} is {d.get('epsilon')}, of at most {d.get('bound')}"
    ),
    "notify_failed": lambda d: (
        f"{_receiver(d)} of [notify] does not take what it is told: {d.get('reason')}; it is tried again"
    ),
    "notify_recovered": lambda d: f"{_receiver(d)} of [notify] takes what it is told again",
    "notify_dropped": lambda d: (
        f"{_receiver(d)} of [notify] was not told of {d.get('event')}: {d.get('reason')}"
    ),
    "executor_chosen": lambda d: f"clients run {_executor(d)}: {d.get('reason')}",
    "not_vectorized": lambda d: f"clients run one by one: {d.get('reason')}",
    "worker_lost": lambda d: f"a worker process was lost ({d.get('cause')}); its clients run again",
    "update_refused": _refused("update"),
    "waiting": _waiting,
    "worker_died": lambda d: f"the run worker died ({d.get('how')}); it is started again",
}
