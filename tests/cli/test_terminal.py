"""What a command leaves on a terminal when it has ended."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Meadow

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
MOVES = re.compile(r"\x1b\[(\d*)([A-KST])|\x1b\[[0-9;?]*[a-zA-Z]|\r\n|\r|\n")


def on_a_terminal(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Run a command on a terminal of its own; return its exit code and all that it wrote there."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "meadow", *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        command, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    written = bytearray()
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # nobody holds the other end any more
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    return process.wait(), written.decode(errors="replace")


def screen(written: str) -> str:
    """Return what a terminal shows of text that moves the cursor and erases lines."""
    lines, row, column, at = [""], 0, 0, 0
    for move in [*MOVES.finditer(written), None]:
        text = written[at : move.start() if move else None]
        lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
        column += len(text)
        if move is None:
            break
        at, kind = move.end(), move[2]
        if move[0] in ("\r\n", "\n"):
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif move[0] == "\r":
            column = 0
        elif kind == "A":
            row = max(0, row - int(move[1] or 1))
        elif kind == "K":
            lines[row] = "" if move[1] == "2" else lines[row][:column]
    return "\n".join(line.rstrip() for line in lines)


@pytest.mark.parametrize("ends", ["early", "late", "well"])
def test_a_simulation_that_fails_leaves_no_spinner(meadow: Meadow, app: Path, ends: str) -> None:
    """Before or after the first round: the rounds that were done, the cause, and nothing that
    seems to go on; the cursor is there again."""
    task = app / "task.py"
    if ends != "well":
        limit = 0 if ends == "early" else 3
        body = f"def fails():\n    CALLS.append(1)\n    assert len(CALLS) <= {limit}, 'no more'\n"
        text = task.read_text().replace("\n\ntask = ", f"\n\nCALLS = []\n\n\n{body}\n\ntask = ")
        text = text.replace("def accuracy", "def unused")
        text = text.replace("metrics={", "metrics={'odd': lambda o, t: (fails(), o[:, 0])[1], ")
        task.write_text(text)
    code, written = on_a_terminal(
        "simulate", "my_app", "--rounds", "2", "--executor", "sequential", "--out", "run",
        cwd=app.parent,
    )  # fmt: skip
    assert (code == 0) == (ends == "well"), written
    assert "\x1b[?25l" in written  # a live table, however soon the run was over
    shown = screen(written)
    assert not set(SPINNER) & set(shown), shown
    assert ("no more" in shown) == (ends != "well")
    assert ("finished 2 rounds" in shown) == (ends == "well")
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
