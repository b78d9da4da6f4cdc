"""`meadow server doctor`, as a command: its lines, and its exit code."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from free_ports import free_port

from meadow.server.daemon.server_dir import ServerFolder

from .conftest import Meadow


def test_its_lines_and_its_exit_code(meadow: Meadow, tmp_path: Path) -> None:
    """A line a check, in text and as JSON; 0 if all is well, and 1 if not."""
    folder = tmp_path / "server"
    ServerFolder.create(folder, host="localhost", now=datetime.now(UTC))
    text = (folder / "server.toml").read_text().replace("9443", str(free_port()))
    text = text.replace("9444", str(free_port())) + "[storage]\nfree_bytes_min = 0\n"
    (folder / "server.toml").write_text(text)
    found = meadow("server", "doctor", "--dir", str(folder))
    assert found.code == 0, found.out
    lines = found.out.splitlines()
    assert lines[0].startswith("ok       server.toml")
    assert all(line.startswith("ok ") for line in lines)
    (folder / "ca" / "key.pem").chmod(0o644)
    found = meadow("server", "doctor", "--dir", str(folder), "--format", "json")
    assert found.code == 1
    rows = [json.loads(line) for line in found.out.splitlines()]
    assert [row["subject"] for row in rows if not row["ok"]] == ["secrets"]
    assert meadow("server", "doctor", "--dir", str(tmp_path / "none")).code == 1
