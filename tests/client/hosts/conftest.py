"""Two machines: network namespaces, joined by a cable of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from meadow.client.hosts.membership import Membership

HERE = Path(__file__).parent
SCANS = HERE.parents[1] / "training" / "parallel" / "scans"
LEADS, JOINS = "10.213.7.1", "10.213.7.2"
PORT = 9460
WAIT_S = 120.0


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition holds; returns what it gives."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {what} within {WAIT_S:.0f} s")


@dataclass
class Machines:
    """Two namespaces: one leads, one joins; each with a folder of its own that has the app."""

    folder: Path
    names: tuple[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @classmethod
    def made(cls, folder: Path) -> Machines:
        """Make them; skips the test where that is not allowed."""
        if shutil.which("ip") is None or os.geteuid() != 0:
            pytest.skip("network namespaces need root and the command ip (Debian: iproute2)")
        names = f"meadow{os.getpid()}a", f"meadow{os.getpid()}b"
        machines = cls(folder, names)
        try:
            for name in names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            _ip(
                "-n",
                names[0],
                *["link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns"],
                names[1],
            )
            for name, address in zip(names, (LEADS, JOINS), strict=True):
                _ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
                _ip("-n", name, "link", "set", "cable", "up")
        except subprocess.CalledProcessError as error:
            machines.remove()
            pytest.skip(f"network namespaces cannot be made here: {error.stderr}")
        for name in ("leads", "joins"):
            app = folder / name / "app"
            shutil.copytree(SCANS, app)
            with (app / "meadow.toml").open("a") as file:
                file.write('[strategy]\nname = "task:pulled"\n')
        return machines

    def remove(self) -> None:
        """End what was started, and remove the namespaces."""
        for process in self.started:
            process.kill()
            process.wait()
        for name in self.names:
            subprocess.run(("ip", "netns", "del", name), check=False, capture_output=True)

    def say(self, machine: str, name: str, text: object) -> None:
        """Leave a word for the app on a machine."""
        (self.folder / machine / name).write_text(str(text))

    def passes(self, machine: str, rank: int) -> int:
        """Return how many passes a rank has made on a machine."""
        file = self.folder / machine / f"passes-{rank}"
        return len(file.read_text().split()) if file.exists() else 0

    def invite(self, name: str = "host-b") -> Path:
        """Return a pass for a machine."""
        file = self.folder / f"{name}.pass"
        Membership(self.folder / "leads").invite(name, now=datetime.now(UTC)).write(file)
        return file

    def join(self, shown: Path, *, log: str = "joins.log") -> subprocess.Popen[str]:
        """Start `meadow client rank --join` on the second machine, which has no memory in common
        with the first: its /dev/shm is its own."""
        own = ("unshare", "--mount", "sh", "-c")
        mounted = ('mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
        command = (sys.executable, "-m", "meadow", "client", "rank")
        options = ("--join", f"{LEADS}:{PORT}", "--pass", shown, "--processes", 2)
        app = ("--app", self.folder / "joins" / "app")
        parts = (*own, *mounted, *command, *options, *app)
        return self.start(1, *map(str, parts), log=log)

    def start(self, machine: int, *command: str, log: str) -> subprocess.Popen[str]:
        """Start a process on one of the machines."""
        with (self.folder / log).open("a") as output:
            process = subprocess.Popen(
                ("ip", "netns", "exec", self.names[machine], *command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if log.endswith(".err") else output,
                stderr=output,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            )
        self.started.append(process)
        return process

    def end_all(self, machine: int) -> None:
        """Kill everything on a machine at once."""
        listed = ("ip", "netns", "pids", self.names[machine])
        found = subprocess.run(listed, check=True, capture_output=True, text=True)
        for pid in found.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def log(self, name: str) -> str:
        """Return what a process has printed."""
        return (self.folder / name).read_text()


class Leading:
    """The first machine's training, in a process of its own."""

    def __init__(self, machines: Machines, **device: Any) -> None:
        told = {"processes": 2, "hosts": 2, "hosts_listen": f"{LEADS}:{PORT}"}
        told |= {"rank_timeout_s": 60.0, "hosts_wait_s": WAIT_S, **device}
        folder = str(machines.folder / "leads")
        script = (sys.executable, str(HERE / "leading.py"), folder, json.dumps(told))
        self.machines = machines
        self.process = machines.start(0, *script, log="leads.err")

    def answer(self) -> dict[str, Any]:
        """Return the next answer."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            with suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict):
                    return answer
        raise AssertionError(f"the leading process ended: {self.machines.log('leads.err')[-3000:]}")

    def begin(self, **asked: Any) -> None:
        """Begin a round."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()

    def train(self, **asked: Any) -> dict[str, Any]:
        """Train a round, and compare it with one process; returns the comparison."""
        self.begin(**asked)
        return self.answer()

    def end(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Return two machines."""
    made = Machines.made(tmp_path_factory.mktemp("machines"))
    yield made
    made.remove()


def _ip(*command: str) -> None:
    subprocess.run(("ip", *command), check=True, capture_output=True, text=True)
