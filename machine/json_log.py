"""Log records as lines of JSON, for what collects logs."""

from __future__ import annotations

import json
import logging
from typing import Any

__all__ = ["JsonFormatter", "fields_of"]

FIELDS = "meadow_fields"
"""The attribute of a record that has its fields."""


def fields_of(event: str, **fields: Any) -> dict[str, Any]:
    """Return the `extra` of a log call: what a line of JSON says beside the message."""
    return {FIELDS: {"event": event, **fields}}


class JsonFormatter(logging.Formatter):
    """One object a line: at_s (seconds since 1970, UTC), level, event, message; run and round where it
    is about one, the event's details, and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at_s": round(record.created, 6),
            "level": record.levelname,
            "event": "log",
            "message": record.getMessage(),
        }
        details = dict(getattr(record, FIELDS, {}))
        line["event"] = details.pop("event", "log")
        line |= {key: value for key, value in details.items() if key not in line}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
