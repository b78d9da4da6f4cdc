"""`meadow demo`: a whole federation on this machine, started with the ordinary commands."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from ..errors import AppError, ConfigError, MeadowError
from ..transport.proxy import bypass_for_this_machine
from .output import Format, FormatOption, say

__all__ = ["DemoFederation", "demo"]

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
START_S = 60.0
STOP_S = 20.0
MARKER = ".meadow-demo"
"""Marks a folder of the demo, which the next demo may empty."""


class DemoFederation:
    """A server and client agents as processes of this machine, each with a folder of its own."""

    def __init__(self, folder: Path, app: Path) -> None:
        self._folder = folder
        self._app = app
        self._processes: list[subprocess.Popen[bytes]] = []
        self.server_dir = folder / "server"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start_server(self) -> str:
        """Lay out and start a server on free ports; returns its fleet address."""
        _meadow("server", "init", "--dir", str(self.server_dir), "--host", "localhost")
        command = ["server", "start", "--dir", str(self.server_dir)]
        command += ["--fleet-port", "0", "--enroll-port", "0"]
        return str(self._start("server", command, until="listening")["fleet"])

    def add_client(self, name: str) -> None:
        """Invite, enrol and start one client."""
        token = _meadow("server", "token", name, "--dir", str(self.server_dir))
        folder = self._folder / "clients" / name
        _meadow(
            "client", "enroll", "--dir", str(folder), "--server", token["server"],
            "--token", "-", "--ca-fingerprint", token["ca_fingerprint"], "--app", str(self._app),
            stdin=token["token"],
        )  # fmt: skip
        self._start(name, ["client", "start", "--dir", str(folder)], until="connected")

    def _start(self, name: str, command: Sequence[str], *, until: str) -> dict[str, Any]:
        """Start a process in the background and wait until it reports the event `until`."""
        log = self._folder / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "meadow", *command, "--format", "json"],
                stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends them in order
            )  # fmt: skip
        self._processes.append(process)
        return _first_event(process, log, until)


@contextmanager
def _ending_well() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into a KeyboardInterrupt, so that all processes are ended."""
    signals = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _first_event(process: subprocess.Popen[bytes], log: Path, event: str) -> dict[str, Any]:
    """Wait for the first `event` in a process's log of JSON lines, and return it."""
    deadline_s = time.monotonic() + START_S
    line = ""
    with log.open() as lines:
        while time.monotonic() < deadline_s:
            line += lines.readline()
            if not line.endswith("\n"):  # not written yet, or not to its end
                if process.poll() is not None:
                    break
                time.sleep(0.02)
                continue
            report = _json_object(line)
            if report.get("event") == event:
                return report
            line = ""
    last = log.read_text(errors="replace").splitlines()[-1:] or ["nothing"]
    raise MeadowError(f"a process did not start: it said {last[0][:300]!r}; see {log}")


def _json_object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:  # a library's warning
        return {}
    return value if isinstance(value, dict) else {}


def _meadow(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "meadow", *arguments, "--format", "json"],
        input=stdin, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise MeadowError(f"`meadow {' '.join(arguments[:2])}` failed: {done.stderr.strip()}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def demo(
    clients: Annotated[int, typer.Option(help="how many client agents", min=2, max=16)] = 4,
    rounds: Annotated[int | None, typer.Option(help="how many rounds", min=1)] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="show the server nothing but sums of updates")
    ] = False,
    out: Annotated[Path, typer.Option(help="where everything goes; emptied first")] = Path(
        "runs/demo"
    ),
    format: FormatOption = Format.TEXT,
) -> None:
    """Train on real images: a server, agents enrolled by token, mutual TLS, non-IID data."""
    from .run import follow_and_pull  # imports what only runs need

    app = EXAMPLES / "mnist"
    if not app.is_dir():
        raise AppError(f"{app} is missing; the demo runs from a checkout of the repository")
    _clear(out)
    bypass_for_this_machine(os.environ)
    begun_at_s = time.monotonic()
    settings = [f"run.min_clients={clients}", f"simulation.clients={clients}"]
    settings += [f"run.rounds={rounds}"] if rounds else []
    settings += ["privacy.secure_aggregation.enabled=true"] if secure else []
    if secure and clients < 3:
        raise ConfigError(f"--secure needs at least 3 clients, got --clients {clients}")
    with _ending_well(), DemoFederation(out.resolve(), app) as federation:
        say(format, "starting the server ...", event="server_starting")
        address = federation.start_server()
        say(format, f"server      fleet {address}, mutual TLS", event="server", fleet=address)
        for index in range(clients):
            federation.add_client(f"site-{index}")
            say(
                format,
                f"client      site-{index} enrolled by token and connected",
                event="client",
                name=f"site-{index}",
            )
        summary = follow_and_pull(federation.server_dir, app, settings, out, format)
    seconds = time.monotonic() - begun_at_s
    accuracy = summary["final"]["server"]["accuracy"]
    say(
        format,
        f"done in {seconds:.0f} s: after {summary['rounds']} rounds the model reads "
        f"{accuracy:.1%} of the images that no client has seen\n"
        f"the run folder is {out}: model.safetensors, metrics.jsonl, summary.json, tensorboard/",
        event="done",
        seconds=seconds,
        summary=summary,
    )


def _clear(out: Path) -> None:
    """Empty a folder that an earlier demo made.

    Raises:
        ConfigError: the folder is not empty, and not a demo's.
    """
    if out.exists() and any(out.iterdir()) and not (out / MARKER).is_file():
        raise ConfigError(f"{out} is not empty and no demo's folder; give another with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True, mode=0o700)
    (out / MARKER).touch()
