"""A federation of real processes for tests: started by command, killed by signal, always ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from free_ports import free_port

from meadow.cli.main import main

PATIENCE_S = 120.0
"""How long a test waits for something that always comes; a busy machine may be slow."""


def meadow(*arguments: str, stdin: str = "", code: int = 0) -> dict[str, Any]:
    """Run a command and return its last line of JSON (or its error text as {"stderr"}).

    It is run in this process, which has imported what each would import anew for half a second.
    """
    stdout, stderr = StringIO(), StringIO()
    ended = None
    with redirect_stdout(stdout), redirect_stderr(stderr), reading(stdin):
        try:
            main([*arguments, "--format", "json"])
        except SystemExit as exit:
            ended = exit.code
    assert ended == code, f"{arguments}: exit {ended}\n{stderr.getvalue()}"
    lines = stdout.getvalue().splitlines()
    said = json.loads(lines[-1]) if lines else {}
    return {"rows": said} if isinstance(said, list) else {**said, "stderr": stderr.getvalue()}


@contextmanager
def reading(text: str) -> Iterator[None]:
    """Let commands read a text from standard input."""
    before, sys.stdin = sys.stdin, StringIO(text)
    try:
        yield
    finally:
        sys.stdin = before


class Patience:
    """So many seconds, of which those do not count in which this process was stopped (SIGSTOP)."""

    STEP_S_MAX = 10.0
    """It is looked at more often than that."""

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._seen_s = time.monotonic()

    def __bool__(self) -> bool:
        now_s = time.monotonic()
        self._left_s -= min(now_s - self._seen_s, self.STEP_S_MAX)
        self._seen_s = now_s
        return self._left_s > 0.0


def wait_until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait for something that another process does, and return it."""
    patience = Patience(patience_s)
    while patience:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what} did not happen within {patience_s} s")


class Process:
    """One `meadow` process of the federation."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.arguments = list(arguments)
        self.log = log
        self.popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it (again)."""
        with self.log.open("ab") as file:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "meadow", *self.arguments, "--format", "json"],
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.popen is not None
        return self.popen.pid

    def kill(self) -> None:
        """kill -9 it."""
        assert self.popen is not None
        self.popen.kill()
        self.popen.wait()

    def stop(self) -> int:
        """SIGTERM it and return its exit code."""
        if self.popen is None or self.popen.poll() is not None:
            return 0
        self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(30)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            return self.popen.wait()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return what it said of one kind of event."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines() if self.log.exists() else []:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict) and said.get("event") == kind:
                found.append(said)
        return found


def children(pid: int, module: str) -> list[int]:
    """Return the ids of a process's children that run a Python module."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            ids = task.read_text().split()
        except OSError:
            continue
        for child in ids:
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue
            if module.encode() in command:
                found.append(int(child))
    return found


class Federation:
    """A server and its agents."""

    def __init__(self, folder: Path, app: Path) -> None:
        self.folder = folder
        self.app = app
        self.server_dir = folder / "server"
        self.fleet_port, self.enroll_port = free_port(), free_port()
        meadow("server", "init", "--dir", str(self.server_dir), "--host", "localhost")
        command = ["server", "start", "--dir", str(self.server_dir)]
        command += ["--fleet-port", str(self.fleet_port), "--enroll-port", str(self.enroll_port)]
        self.server = Process(command, folder / "server.log")
        self.clients: list[Process] = []

    def start_server(self) -> None:
        """Start the daemon and wait until it listens."""
        before = len(self.server.events("listening"))
        self.server.start()
        wait_until(lambda: len(self.server.events("listening")) > before, "the server listens")

    def client_dir(self, index: int) -> Path:
        """Return a client's folder."""
        return self.folder / f"client-{index}"

    def enroll(self, index: int) -> None:
        """Invite and enrol one client."""
        token = meadow("server", "token", f"client-{index}", "--dir", str(self.server_dir))
        meadow(
            "client", "enroll", "--dir", str(self.client_dir(index)), "--server", token["server"],
            "--token", "-", "--ca-fingerprint", token["ca_fingerprint"], "--app", str(self.app),
            stdin=token["token"],
        )  # fmt: skip

    def add_clients(self, count: int) -> None:
        """Enrol and start clients, and wait until all are connected."""
        for index in range(count):
            self.enroll(index)
        self.start_clients(count)

    def start_clients(self, count: int) -> None:
        """Start clients that are enrolled, and wait until all are connected."""
        started = [self.start_client(index) for index in range(count)]
        for client in started:
            wait_until(lambda c=client: c.events("connected"), "a client connects")

    def start_client(self, index: int) -> Process:
        """Start one client that is enrolled."""
        command = ["client", "start", "--dir", str(self.client_dir(index))]
        self.clients.append(Process(command, self.folder / f"client-{index}.log"))
        self.clients[-1].start()
        return self.clients[-1]

    def submit(self, *settings: str) -> int:
        """Begin a run of the app and return its number."""
        options = [part for setting in settings for part in ("--set", setting)]
        said = meadow("run", "submit", str(self.app), "--dir", str(self.server_dir), *options)
        return int(said["run"])

    def run_dir(self, run: int) -> Path:
        """Return a run's folder on the server."""
        return self.server_dir / "runs" / str(run)

    def rounds(self, run: int) -> list[dict[str, Any]]:
        """Return the rounds that are durable so far."""
        file = self.run_dir(run) / "metrics.jsonl"
        if not file.exists():
            return []
        lines = file.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for_round(self, run: int, number: int) -> None:
        """Wait until a round is durable."""
        wait_until(lambda: len(self.rounds(run)) >= number, f"round {number}")

    def wait_for_end(self, run: int) -> dict[str, Any]:
        """Wait until a run is over and return its summary."""

        def summary() -> dict[str, Any] | None:
            file = self.run_dir(run) / "summary.json"
            return dict(json.loads(file.read_text())) if file.exists() else None

        return dict(wait_until(summary, "the run's end"))

    def model(self, run: int) -> bytes:
        """Return a run's model file."""
        return (self.run_dir(run) / "model.safetensors").read_bytes()

    def workers(self) -> list[int]:
        """Return the process ids of the daemon's run workers."""
        return children(self.server.pid, "meadow.server.worker.worker")

    def trainers(self, index: int) -> list[int]:
        """Return the process ids of a client's training processes."""
        return children(self.clients[index].pid, "meadow.client.worker.training_process")

    def close(self) -> None:
        """End everything that was started."""
        for process in [*self.clients, self.server]:
            process.stop()


@contextmanager
def federation(folder: Path, app: Path, *, clients: int) -> Iterator[Federation]:
    """A running federation; its processes are ended in any case."""
    made = Federation(folder, app)
    try:
        made.start_server()
        made.add_clients(clients)
        yield made
    finally:
        made.close()


def kill_9(pid: int) -> None:
    """kill -9 a process by its id, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
