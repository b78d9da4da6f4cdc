"""What the benchmarks of whole federations share."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meadow.apps.folder import App, pack
from meadow.server.remote.connection import admin_stub
from meadow.transport import fleet_pb2 as pb

__all__ = ["many_agents", "process_of", "run_to_end", "status_kb"]


def run_to_end(
    server_dir: Path,
    app: Path,
    *settings: str,
    on_event: Callable[[str], None] = lambda kind: None,
    on_detail: Callable[[str, dict[str, Any]], None] = lambda kind, detail: None,
) -> list[dict[str, Any]]:
    """Run an app on a server and return its rows of metrics.jsonl.

    Raises:
        RuntimeError: the run failed.
    """
    archive = pack(App.load(app).folder)
    with admin_stub(server_dir, None) as stub:
        opened = pb.SubmitOpen(size_bytes=len(archive), name=app.name, settings=settings)
        messages = [pb.SubmitMessage(open=opened), pb.SubmitMessage(zip=archive)]
        run = stub.Submit(iter(messages))
        for event in stub.Watch(pb.RunId(id=run.id)):
            on_event(event.kind)
            on_detail(event.kind, json.loads(event.json))
        final = stub.ShowRun(pb.RunId(id=run.id)).run
    if final.status != "finished":
        raise RuntimeError(f"the run {final.status}: {final.cause}")
    lines = (server_dir / "runs" / str(run.id) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@contextmanager
def many_agents(
    folder: Path, count: int, *, first: int = 0, pace_s: float = 0.0, thin: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with `count` enrolled agents from `first` on, who take `pace_s` for an answer.

    Thin ones answer at once, and keep nothing on disk.
    """
    script = Path(__file__).with_name("thin_agents.py" if thin else "agents.py")
    command = [sys.executable, str(script), str(folder), str(count), str(first), str(pace_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def process_of(*words: str) -> int:
    """Return the id of the process whose command line has all these words, 0 if none has."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if all(any(word in part for part in command) for word in words):
            return int(folder.name)
    return 0


def status_kb(pid: int, field: str) -> int:
    """Return a field of /proc/PID/status in kB, for instance VmHWM, the peak resident memory."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)
