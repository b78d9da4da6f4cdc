"""What happens to a federation in a soak: kills, cuts, full disks and flipped bits."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from ..processes import Federation, Process, kill_9, wait_until
from .lines import Lines

DISK_MB = 96
MODELS_ON_A_DISK = 32
GROUPS = ("kills", "network", "bits", "disks")
FULL_S = 2.0
STOPPED_S = 3.0
APP_SHARE = 0.05
"""How many of the flipped bits are an app's: such a run has to be submitted anew."""


class Disks:
    """Folders on small disks of their own, where this system lets us make some."""

    def __init__(self, model_mb: int) -> None:
        self._size_mb = DISK_MB + MODELS_ON_A_DISK * model_mb
        self._mounted: list[Path] = []

    def make(self, folder: Path) -> bool:
        """Put a folder on a disk; returns whether it is on one now."""
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size_mb}m", "soak", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except OSError:
            return False
        if done.returncode == 0:
            self._mounted.append(folder)
        return done.returncode == 0

    def fill(self, folder: Path) -> None:
        """Leave no room on the disk of a folder."""
        with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def empty(self, folder: Path) -> None:
        """Make room again."""
        (folder / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        """Take the disks away."""
        for folder in self._mounted:
            subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


class Faults:
    """Draws what happens next, lets it happen, and counts it.

    Attributes:
        counts: how often each kind was drawn.
        kills: how many processes were killed.
        kill_points: how many times one was, or some at once.
    """

    def __init__(
        self,
        fleet: Federation,
        lines: list[Lines],
        disks: Disks,
        rng: random.Random,
        *,
        groups: Collection[str],
        model_mb: int,
    ) -> None:
        self._fleet, self._lines, self._disks, self._rng = fleet, lines, disks, rng
        self._carried_bytes_max = max(200_000, model_mb * 1_000_000)
        self.counts: Counter[str] = Counter()
        self.kills = self.kill_points = 0
        kinds: dict[str, list[tuple[Callable[[], None], int]]] = {
            "kills": [
                (self.kill_daemon, 3), (self.kill_worker, 4), (self.kill_agent, 4),
                (self.kill_trainer, 4), (self.kill_all, 1), (self.stop_a_while, 2),
            ],
            "network": [
                (self.cut_lines, 4), (self.cut_in_a_message, 4), (self.corrupt_a_line, 4),
                (self.silence_a_line, 2),
            ],
            "bits": [(self.flip_on_server, 4), (self.flip_on_client, 3)],
            "disks": [(self.fill_server, 3), (self.fill_client, 3)],
        }  # fmt: skip
        assert set(kinds) == set(GROUPS)
        self._kinds = [kind for group in groups for kind in kinds[group]]

    @property
    def points(self) -> int:
        """How many times something was done to a process or to a connection."""
        return self.kill_points + self.harmed

    @property
    def harmed(self) -> int:
        """How many connections were harmed."""
        return sum(line.harmed for line in self._lines)

    def happen(self, run: int) -> None:
        """Let one fault happen."""
        kinds, weights = zip(*self._kinds, strict=True)
        self._run = run
        (kind,) = self._rng.choices(kinds, weights)
        self.counts[kind.__name__] += 1
        kills = self.kills
        kind()
        self.kill_points += self.kills > kills
        print(f"  {kind.__name__} ({self.kill_points} kills, {self.harmed} harmed)", flush=True)

    # ------------------------------------------------------------------ processes

    def kill_daemon(self) -> None:
        self._kill(self._fleet.server)
        self.start_server()

    def kill_worker(self) -> None:
        self._kill_all_of(self._fleet.workers())

    def kill_agent(self) -> None:
        client = self._fleet.clients[self._which()]
        self._kill(client)
        client.start()

    def kill_trainer(self) -> None:
        self._kill_all_of(self._fleet.trainers(self._which()))

    def _kill(self, process: Process) -> None:
        process.kill()
        self.kills += 1

    def _kill_all_of(self, pids: list[int]) -> None:
        for pid in pids:
            kill_9(pid)
        self.kills += len(pids)

    def kill_all(self) -> None:
        for process in [self._fleet.server, *self._fleet.clients]:
            self._kill(process)
        self.start_server()
        for client in self._fleet.clients:
            client.start()

    def stop_a_while(self) -> None:
        pids = [self._fleet.server.pid, *(client.pid for client in self._fleet.clients)]
        pids += self._fleet.workers()
        pid = self._rng.choice(pids)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self._rng.uniform(0.1, STOPPED_S))
            os.kill(pid, signal.SIGCONT)

    # ------------------------------------------------------------------ lines

    def cut_lines(self) -> None:
        self._rng.choice(self._lines).cut()

    def cut_in_a_message(self) -> None:
        self._rng.choice(self._lines).cut_after(self._rng.randrange(1, self._carried_bytes_max))

    def corrupt_a_line(self) -> None:
        self._rng.choice(self._lines).corrupt()

    def silence_a_line(self) -> None:
        self._rng.choice(self._lines).be_silent(self._rng.uniform(0.5, STOPPED_S))

    # ------------------------------------------------------------------ disks

    def fill_server(self) -> None:
        self._full(self._fleet.server_dir)

    def fill_client(self) -> None:
        self._full(self._fleet.client_dir(self._which()))

    def _full(self, folder: Path) -> None:
        self._disks.fill(folder)
        time.sleep(self._rng.uniform(0.2, FULL_S))
        self._disks.empty(folder)

    # ------------------------------------------------------------------ bits

    def flip_on_server(self) -> None:
        """Flip a bit of what a stopped server finds when it is started again."""
        self._kill(self._fleet.server)
        run_dir, folder = self._fleet.run_dir(self._run), self._fleet.server_dir
        pools = [
            sorted((run_dir / "checkpoints").glob("round-*")),
            sorted((folder / "spool").rglob("*.safetensors")),
            [folder / "journal.sqlite"],
            [*folder.glob("journal.sqlite-wal")],
        ]
        if self._rng.random() < APP_SHARE:
            pools = [sorted((run_dir / "app").rglob("*.py"))]
        self.flip(self._rng.choice(self._rng.choice([pool for pool in pools if pool])))
        self.start_server()

    def flip_on_client(self) -> None:
        """Likewise of a client: one that cannot go on enrols anew."""
        index = self._which()
        client, folder = self._fleet.clients[index], self._fleet.client_dir(index)
        self._kill(client)
        files = [
            *(folder / "runs").rglob("*.safetensors"),
            *(folder / "blobs").glob("*.safetensors"),
        ]
        files += [folder / name for name in ("agent.sqlite", "agent.sqlite-wal")] * max(
            1, len(files)
        )
        files += [folder / "identity" / name for name in ("ca.pem", "certificate.pem", "key.pem")]
        connected = len(client.events("connected"))
        self.flip(self._rng.choice([path for path in files if path.exists()]))
        client.start()
        wait_until(
            lambda: client.popen.poll() is not None or len(client.events("connected")) > connected,
            "the client starts",
        )
        if client.popen is not None and client.popen.poll() is not None:
            self.counts["a client refused to start"] += 1
            self.enroll_anew(index)

    def flip(self, path: Path) -> None:
        """Flip a bit anywhere in a file."""
        data = bytearray(path.read_bytes())
        if not data:
            return
        place = self._rng.randrange(len(data))
        data[place] ^= 1 << self._rng.randrange(8)
        path.write_bytes(data)
        print(f"    {path.relative_to(self._fleet.folder)} at {place} of {len(data)}", flush=True)

    # ------------------------------------------------------------------ repairs, as people make them

    def start_server(self) -> None:
        """Start the daemon; if it finds its journal damaged, repair that first."""
        for _ in range(3):
            before = len(self._fleet.server.events("listening"))
            self._fleet.server.start()
            popen = self._fleet.server.popen
            assert popen is not None
            wait_until(
                lambda before=before, popen=popen: (
                    popen.poll() is not None or len(self._fleet.server.events("listening")) > before
                ),
                "the server starts",
            )
            if popen.poll() is None:
                return
            said = self._fleet.server.log.read_text(errors="replace").splitlines()[-1]
            if "full" in said or "No space" in said:
                self.counts["a server did not start on a full disk"] += 1
                continue
            assert "damaged" in said, f"the server ended with: {said}"
            self.counts["a journal repaired"] += 1
            self._repair()
        raise AssertionError("the server does not start")

    def _repair(self) -> None:
        shutil.rmtree(self._fleet.folder / "kept", ignore_errors=True)
        for path in self._fleet.server_dir.glob("journal.damaged.sqlite*"):
            path.unlink()
        command = ["server", "check", "--dir", str(self._fleet.server_dir), "--repair"]
        done = subprocess.run(
            [sys.executable, "-m", "meadow", *command], capture_output=True, text=True, check=False
        )
        assert "the new journal has" in done.stdout, f"{done.stdout}\n{done.stderr}"

    def enroll_anew(self, index: int) -> None:
        """Give a client whose folder is damaged a new one."""
        folder = self._fleet.client_dir(index)
        for path in list(folder.iterdir()):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self._fleet.enroll(index)
        through(folder, self._lines[index])
        self._fleet.clients[index].start()

    def _which(self) -> int:
        return self._rng.randrange(len(self._fleet.clients))


def through(client_dir: Path, lines: Lines) -> None:
    """Let an enrolled client reach the fleet through a relay."""
    path = client_dir / "identity" / "client.json"
    about = json.loads(path.read_text())
    about["fleet_address"] = f"localhost:{lines.port}"
    path.write_text(json.dumps(about))
