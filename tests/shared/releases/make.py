"""Makes the folders of a release, as tests/federation/test_upgrade.py takes them over:

    python tests/shared/releases/make.py PYTHON OUT.tar.xz

PYTHON is an interpreter with that release. The folders are those of a server and two agents, stopped
in the middle of their third run. Of the first two, both finished, one is private, and one what the third is
when nothing happens to it. The certificates are valid for ten years; the keys open nothing else.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

APP = Path(__file__).parent / "exact"
DP = "privacy.differential_privacy"
PRIVATE = (
    "run.rounds=2",
    f"{DP}.enabled=true",
    f"{DP}.noise_multiplier=2.0",
    f"{DP}.sampling=fixed",
)
ROUNDS = 30  # of exact/meadow.toml
PATIENCE_S = 120.0


class OldRelease:
    """A server and agents of a release in a folder."""

    def __init__(self, python: str, folder: Path, environ: dict[str, str] | None = None) -> None:
        self.folder, self.server = folder, folder / "server"
        self.command, self.environ = [python, "-m", "meadow"], environ
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        with socket.socket() as one, socket.socket() as other:
            for each in (one, other):
                each.bind(("127.0.0.1", 0))
            self.ports = [str(each.getsockname()[1]) for each in (one, other)]

    def call(self, *arguments: str, stdin: str = "") -> dict[str, object]:
        """Run a command and return what it says."""
        command = [*self.command, *arguments, "--format", "json"]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=True, cwd=self.folder,
            env=self.environ,
        )  # fmt: skip
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def start(self, name: str, *arguments: str) -> None:
        """Start a process."""
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [*self.command, *arguments]
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env=self.environ
            )

    def start_server(self) -> None:
        """Start the daemon."""
        ports = ["--fleet-port", self.ports[0], "--enroll-port", self.ports[1]]
        self.start("server", "server", "start", "--dir", str(self.server), *ports)

    def start_client(self, index: int) -> None:
        """Start an agent."""
        self.start(f"client-{index}", "client", "start", "--dir", str(self.client(index)))

    def client(self, index: int) -> Path:
        """Return an agent's folder."""
        return self.folder / f"client-{index}"

    def set_up(self) -> None:
        """Lay everything out, and start it."""
        shutil.copytree(APP, self.folder / "exact")
        self.call("server", "init", "--dir", str(self.server), "--host", "localhost")
        file = self.server / "server.toml"
        lines = [each for each in file.read_text().splitlines() if "certificate_days" not in each]
        file.write_text("\n".join([*lines, "certificate_days = 3650", ""]))
        self.start_server()
        waits_for(lambda: (self.server / "listening.json").exists())
        for index in range(2):
            token = self.call("server", "token", f"client-{index}", "--dir", str(self.server))
            self.call(
                "client", "enroll", "--dir", str(self.client(index)), "--server",
                str(token["server"]), "--token", "-", "--ca-fingerprint",
                str(token["ca_fingerprint"]), "--app", str(self.folder / "exact"),
                stdin=str(token["token"]),
            )  # fmt: skip
            self.start_client(index)
        waits_for(lambda: self.connected() == 2)

    def connected(self) -> object:
        """Return how many agents the server has."""
        return self.call("server", "status", "--dir", str(self.server))["connected"]

    def submit(self, *settings: str) -> int:
        """Begin a run."""
        options = [f"--set={each}" for each in settings]
        app = str(self.folder / "exact")
        return int(str(self.call("run", "submit", app, "--dir", str(self.server), *options)["run"]))

    def model(self, run: int) -> bytes:
        """Return a run's model file."""
        return (self.server / "runs" / str(run) / "model.safetensors").read_bytes()

    def rounds(self, run: int) -> int:
        """Return how many rounds of a run are durable."""
        file = self.server / "runs" / str(run) / "metrics.jsonl"
        return file.read_text().count("\n") if file.exists() else 0

    def ends(self, run: int) -> None:
        """Wait for the end of a run."""
        summary = self.server / "runs" / str(run) / "summary.json"
        waits_for(summary.exists)
        assert json.loads(summary.read_text())["status"] == "finished", summary.read_text()

    def end(self, name: str, how: signal.Signals) -> None:
        """End a process."""
        process = self.processes.pop(name)
        process.send_signal(how)
        process.wait(30)

    def close(self) -> None:
        """End everything that was started."""
        for name in [*self.processes]:
            self.end(name, signal.SIGKILL)


def waits_for(condition: Callable[[], object]) -> None:
    """Wait for what other processes do."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, condition
        time.sleep(0.01)


@contextmanager
def old_release(python: str, folder: Path) -> Iterator[OldRelease]:
    """A running federation of a release; its processes are ended in any case."""
    made = OldRelease(python, folder)
    try:
        made.set_up()
        yield made
    finally:
        made.close()


def main(python: str, out: str) -> None:
    """Make the folders."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        with old_release(python, folder) as made:
            made.ends(made.submit(*PRIVATE))
            made.ends(made.submit())
            run = made.submit()
            waits_for(lambda: made.rounds(run) >= 5)
            for name in [*made.processes]:
                made.end(name, signal.SIGTERM)
        assert 5 <= made.rounds(run) < ROUNDS
        for index in range(2):
            file = made.client(index) / "client.toml"
            file.write_text(file.read_text().replace(str(folder / "exact"), "../exact"))
        with tarfile.open(out, "w:xz") as tar:
            for each in ("exact", "server", "client-0", "client-1"):
                tar.add(folder / each, each, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what only a running process has, and whose files they were."""
    if "__pycache__" in member.name or not (member.isreg() or member.isdir() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main(*sys.argv[1:])
