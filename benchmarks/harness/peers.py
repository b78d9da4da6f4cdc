"""Peers in virtual environments of their own, so that no peer's needs touch Meadow's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["measure", "peer_python", "run"]

PROGRAMS = Path(__file__).resolve().parents[1] / "peers"
ENVIRONMENTS = PROGRAMS.parents[1] / "build" / "peers"
TIME_LIMIT_S = 1800.0
TAIL_CHARACTERS = 2000


def peer_python(name: str) -> Path:
    """Return the Python of a peer's environment, made from benchmarks/peers/NAME.txt if need be.

    It is made once and again when the file, a complete list of pinned versions, has changed.

    Raises:
        ValueError: there is no such list.
        RuntimeError: pip could not install it; the message has the end of its output.
    """
    pinned = PROGRAMS / f"{name}.txt"
    if not pinned.is_file():
        known = ", ".join(sorted(path.stem for path in PROGRAMS.glob("*.txt")))
        raise ValueError(f"peer must be one of {known}, got {name!r}")
    folder = ENVIRONMENTS / name
    python, installed = folder / "bin" / "python", folder / "installed.txt"
    if installed.is_file() and installed.read_text() == pinned.read_text():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(folder)])
    run([str(python), "-m", "pip", "install", "--quiet", "-r", str(pinned)])
    installed.write_text(pinned.read_text())  # last: a half-made environment is made again
    return python


def measure(
    name: str, program: str, *arguments: str, time_limit_s: float = TIME_LIMIT_S
) -> dict[str, Any]:
    """Run benchmarks/peers/PROGRAM in the peer's environment and return its last line, read as JSON.

    Raises:
        ValueError: there is no such peer.
        TimeoutError: it took longer than `time_limit_s`; it and its children were killed.
        RuntimeError: it failed, or its last line is no JSON object.
    """
    command = [str(peer_python(name)), str(PROGRAMS / program), *arguments]
    last = run(command, time_limit_s=time_limit_s).strip().rpartition("\n")[2]
    try:
        outcome = json.loads(last)
    except ValueError:
        outcome = None
    if isinstance(outcome, dict):
        return outcome
    raise RuntimeError(f"{program}'s last line must be a JSON object, got {last[:200]!r}")


def run(command: list[str], *, cwd: Path | None = None, time_limit_s: float | None = None) -> str:
    """Run a command and return its output; its children do not outlive it.

    Raises:
        TimeoutError: it took longer than `time_limit_s`.
        RuntimeError: it failed; the message has the end of what it wrote as errors.
    """
    with subprocess.Popen(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that its children can be killed with it
    ) as process:
        try:
            output, errors = process.communicate(timeout=time_limit_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{command[1:]} took longer than {time_limit_s:g} s") from None
        finally:
            _kill_group(process.pid)
    if process.returncode:
        raise RuntimeError(
            f"{command[1:]} failed with status {process.returncode}: {errors[-TAIL_CHARACTERS:]}"
        )
    return output


def _kill_group(leader: int) -> None:
    """Kill what is left of a process group, which may be nothing."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return
