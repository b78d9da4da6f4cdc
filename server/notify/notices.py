"""A notice: one event of the server, as somebody is told it.

A notice is made of a row of the journal's events, and is the same each time that it is made: what a
receiver gets twice has the same `id`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any, Final

from ...reports.sentences import moment, sentence_of
from ..journal.conditions import CONDITIONS

__all__ = ["KINDS", "Notice", "notice_of"]

ENDS: Final = {"finished": "run_finished", "failed": "run_failed", "stopped": "run_stopped"}
KINDS: Final = ("status", *CONDITIONS, *CONDITIONS.values())
"""The kinds of the journal's events of which there may be notices."""
TEXT_CHARS_MAX: Final = 2000
DETAILS_MAX: Final = 16
SUBJECT_CHARS_MAX: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One event; `number` is its place in the journal, and `run_id` 0 if it is about no run."""

    number: int
    id: str
    event: str
    at_s: float
    server: str
    run_id: int
    text: str
    detail: Mapping[str, Any]

    def body(self) -> bytes:
        """Return the notice as JSON."""
        said: dict[str, Any] = {
            "id": self.id,
            "event": self.event,
            "at": datetime.fromtimestamp(self.at_s, UTC).isoformat(timespec="milliseconds"),
            "server": self.server,
            "text": self.text,
            "detail": dict(self.detail),
        }
        if self.run_id:
            said["run"] = self.run_id
        return json.dumps(said, allow_nan=False).encode()

    def mail(self) -> bytes:
        """Return the notice as a mail without addresses, whose sender and recipient the command adds."""
        mail = EmailMessage(policy=SMTP.clone(linesep="\n"))
        mail["Subject"] = f"[meadow {self.server}] {self.text}"[:SUBJECT_CHARS_MAX]
        mail["Message-ID"] = f"<{self.id}@{self.server}>"
        mail["Auto-Submitted"] = "auto-generated"
        about = (
            f"run:     {self.run_id}, see `meadow run show {self.run_id}`\n" if self.run_id else ""
        )
        mail.set_content(
            f"{self.text}\n\nserver:  {self.server}\nevent:   {self.event}\n{about}"
            f"at:      {moment(self.at_s)}\nid:      {self.id}\n"
        )
        return mail.as_bytes()


def notice_of(row: sqlite3.Row, *, server: str, server_id: str) -> Notice | None:
    """Return the notice of an event of the journal; None if nobody is told of it."""
    detail = json.loads(row["json"])
    if not isinstance(detail, dict):
        return None
    kind, run_id = row["kind"], row["run_id"]
    event = ENDS.get(str(detail.get("status"))) if kind == "status" else kind
    if event is None:
        return None
    about = f"run {run_id} " if run_id else ""
    text = f"{about}{sentence_of(kind, detail) or kind}"
    return Notice(
        number=row["id"],
        id=f"{server_id}-{row['id']}-{round(row['at_s'] * 1000)}",
        event=event,
        at_s=row["at_s"],
        server=server,
        run_id=run_id,
        text=_line(text),
        detail={key: _value(each) for key, each in list(detail.items())[:DETAILS_MAX]},
    )


def _line(text: str) -> str:
    """Return a text as one printable line, not too long: causes may quote an app, or a client."""
    return "".join(mark if mark.isprintable() else " " for mark in text[:TEXT_CHARS_MAX])


def _value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and value - value == 0:  # finite
        return value
    return _line(str(value))
