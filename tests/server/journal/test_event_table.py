"""Events in the journal are lines of the server's log too."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from meadow.machine.json_log import JsonFormatter
from meadow.server.journal.journal import Journal


def test_events_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A line says the run and the round, and how much it asks for attention; it is one line."""
    journal = Journal(tmp_path / "journal.sqlite")
    caplog.set_level(logging.INFO, "meadow.server")
    loss = {"round": 2, "loss": 0.123456, "nested": {"a": 1}, "cause": ""}
    journal.events.record(3, "round_committed", json.dumps(loss), now_s=1.0, round=2)
    journal.events.record(3, "status", json.dumps({"status": "failed", "cause": "x"}), now_s=1.0)
    denied = {"client": "a\x1b[31m\nb", "reason": "?" * 1000, "claimed": None}
    journal.events.record(0, "access_denied", json.dumps(denied), now_s=1.0)
    journal.close()
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines[0] == ("INFO", "run 3, round 2: round committed: loss 0.1235")
    assert lines[1] == ("WARNING", "run 3: status: status failed, cause x")
    assert lines[2][0] == "WARNING"
    assert lines[2][1].startswith("access denied: client a?[31m?b, reason ???")
    assert len(lines[2][1]) <= 400


def test_lines_for_programs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One object a line, whatever a peer sent: the event, its run and round, and all its details."""
    journal = Journal(tmp_path / "journal.sqlite")
    caplog.set_level(logging.INFO, "meadow.server")
    loss = {"round": 2, "loss": 0.123456, "nested": {"a": 1}, "at_s": "mine", "event": "mine"}
    journal.events.record(3, "round_committed", json.dumps(loss), now_s=1.0, round=2)
    journal.events.record(0, "access_denied", json.dumps({"client": "a\n\x1bb"}), now_s=1.0)
    journal.close()
    try:
        raise ValueError("a bug")
    except ValueError:
        logging.getLogger("meadow.server").exception("run %d", 3)
    texts = [JsonFormatter().format(record) for record in caplog.records]
    assert all("\n" not in text for text in texts)
    committed, denied, failed = map(json.loads, texts)
    assert (committed["event"], committed["run"], committed["round"]) == ("round_committed", 3, 2)
    assert committed["level"] == "INFO" and isinstance(committed["at_s"], float)
    assert committed["detail"] == {key: loss[key] for key in ("loss", "nested", "at_s", "event")}
    assert denied["level"] == "WARNING" and "run" not in denied
    assert denied["detail"] == {"client": "a\n\x1bb"}
    assert failed["event"] == "log" and "ValueError: a bug" in failed["traceback"]
