"""Rounds of a model of 4 GB with two agents: memory, disk, time, and what a cut transfer costs.

`python benchmarks/large_model.py --model-mb 1000` takes another size. The agents are a process each,
with a trainer that adds a number and holds a block at a time. The first round is left alone; in
the second one agent is killed by kill -9 when it has received 90 % of the model, in the third one
when it has sent 90 % of its update, and started again at once. Every round must count both.

Peaks are VmHWM: resident memory, files that are mapped included. RssAnon, the part that no file backs,
is beside it in the table. The disk is that of the server's folder, a file with several names counted
once. `dd_ratio` is the first round's time in units of what `dd` takes to write as many bytes to the
same disk as the round moves, four models: two down and two up.

Disk: the server's folder takes 5 models, and the agents' come on top.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.agents import enroll_many
from harness.fleet import process_of, run_to_end, status_kb
from harness.report import report

from meadow.cli.demo import DemoFederation

APP = Path(__file__).parent / "apps" / "constant"
AGENTS, ROUNDS = 2, 3
MODEL_MB = 4000
CUT_AT = 0.9
"""The share of a file that has arrived when its agent is killed."""
LOOKED_EVERY_S = 0.05
PARTS = (".part", ".over")
"""How the names of files end that have arrived in part."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-mb", type=int, default=MODEL_MB)
    parser.add_argument("--folder", type=Path, help="where the disk has room; else the usual one")
    given = parser.parse_args()
    model_mb: int = given.model_mb
    os.environ["MODEL_MB"] = str(model_mb)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        dd_s = _seconds_of_dd(Path(name) / "dd", model_mb)
        rows, peaks, cuts = _measured(Path(name), model_mb)
    # what a cut moved again is beyond two models in its direction
    again = {
        kind: rows[number][f"bytes_{way}"] / (model_mb * 1e6) - AGENTS
        for kind, number, way in (("received", 1, "sent"), ("sent", 2, "received"))
    }
    round_s = rows[0]["duration_s"]
    table = [
        {"what": who, "peak MB": peak["VmHWM"] / 1e3, "without files MB": peak["RssAnon"] / 1e3}
        for who, peak in peaks.processes.items()
    ]
    figures = {
        "model_mb": model_mb,
        "worker_peak_mb": round(peaks.processes["worker"]["VmHWM"] / 1e3),
        "daemon_peak_mb": round(peaks.processes["daemon"]["VmHWM"] / 1e3),
        "agent_peak_mb": round(
            max(peaks.processes[f"agent {number}"]["VmHWM"] for number in range(AGENTS)) / 1e3
        ),
        "moved_again_share": round(max(again.values()), 4),
        "received_again_share": round(again["received"], 4),
        "sent_again_share": round(again["sent"], 4),
        "cut_at": round(min(cuts), 3),
        "disk_peak_mb": round(peaks.disk_bytes / 1e6),
        "round_s": round(round_s, 2),
        "dd_s": round(2 * AGENTS * dd_s, 2),
        "dd_ratio": round(round_s / (2 * AGENTS * dd_s), 2),
    }
    report("large_model", table, figures)


class _Peaks:
    """What the processes and the server's folder have held at most."""

    def __init__(self, server_dir: Path) -> None:
        self.processes: dict[str, dict[str, int]] = {}
        self.disk_bytes = 0
        self._server_dir = server_dir

    def look(self, pids: dict[str, int]) -> None:
        """Look at processes, by what they are, and at the folder."""
        for who, pid in pids.items():
            seen = self.processes.setdefault(who, {"VmHWM": 0, "RssAnon": 0})
            for field in seen:
                seen[field] = max(seen[field], status_kb(pid, field))
        self.disk_bytes = max(self.disk_bytes, _disk_bytes(self._server_dir))


class _Agent:
    """An agent's process, alone in it."""

    def __init__(self, folder: Path, number: int) -> None:
        script = Path(__file__).parent / "harness" / "agents.py"
        self.folder = folder / f"agent-{number:03d}"
        self._command = [sys.executable, str(script), str(folder), "1", str(number), "0"]
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE)

    def kill_and_start(self) -> None:
        """kill -9, and a new start."""
        self._process.kill()
        self._process.wait()
        self._start()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def _measured(folder: Path, model_mb: int) -> tuple[list[dict[str, float]], _Peaks, list[float]]:
    """Run the app; return its rows, the peaks, and what share of each file had arrived at its cut."""
    with DemoFederation(folder, APP) as federation:
        federation.start_server()
        server_dir = federation.server_dir
        enroll_many(server_dir, folder / "agents", APP, AGENTS)
        agents = []
        for number in range(AGENTS):
            _allow(folder / "agents" / f"agent-{number:03d}" / "client.toml", model_mb)
            agents.append(_Agent(folder / "agents", number))
        peaks, cuts = _Peaks(server_dir), _Cuts(server_dir, agents[0], model_mb * 1_000_000)
        daemon = process_of("server", "start", str(server_dir))

        def look() -> None:
            pids = {"daemon": daemon, "worker": _worker_of(daemon)}
            pids |= {f"agent {number}": agent.pid for number, agent in enumerate(agents)}
            peaks.look(pids)
            cuts.look()

        def on_event(kind: str) -> None:
            if kind == "round_committed":
                cuts.round += 1

        settings = [f"run.rounds={ROUNDS}", f"run.min_clients={AGENTS}", "run.deadline_s=3600"]
        try:
            with _often(look):
                rows = run_to_end(server_dir, APP, *settings, on_event=on_event)
        finally:
            for agent in agents:
                agent.stop()
    if any(row["clients"] != AGENTS for row in rows) or len(cuts.at) != ROUNDS - 1:
        raise RuntimeError(f"{[row['clients'] for row in rows]} clients, cuts at {cuts.at}")
    return rows, peaks, cuts.at


class _Cuts:
    """Kills an agent when so much has arrived: at the agent in round 2, at the server in round 3."""

    def __init__(self, server_dir: Path, agent: _Agent, model_bytes: int) -> None:
        self.round = 1
        self.at: list[float] = []
        self._server_dir, self._agent, self._model_bytes = server_dir, agent, model_bytes

    def look(self) -> None:
        """Kill the agent if it is time; once a round."""
        if self.round - 1 != len(self.at) + 1:
            return
        folder = self._agent.folder if self.round == 2 else self._server_dir / "spool"
        own = {path.name.partition(".")[0] for path in _files(self._agent.folder)}
        arrived = [
            _arrived_bytes(path)
            for path in _files(folder)
            if path.suffix in PARTS and path.name.partition(".")[0] in own
        ]
        share = max(arrived, default=0) / self._model_bytes
        if share >= CUT_AT:
            self._agent.kill_and_start()
            self.at.append(share)


def _arrived_bytes(part: Path) -> int:
    """Return how much of a file has arrived: one that is written over another says so in its name."""
    try:
        return int(part.suffixes[-2][1:]) if part.suffix == ".over" else part.stat().st_size
    except OSError:  # it is whole by now
        return 0


@contextmanager
def _often(action: Callable[[], None]) -> Iterator[None]:
    """Do something again and again in another thread."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(LOOKED_EVERY_S):
            action()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _worker_of(daemon: int) -> int:
    """Return the process of the run, 0 if there is none."""
    for file in Path(f"/proc/{daemon}/task").glob("*/children"):
        for child in file.read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"meadow.server.worker.worker" in command:
                return int(child)
    return 0


def _files(folder: Path) -> list[Path]:
    return [
        Path(where) / name for where, _, names in os.walk(folder, onerror=None) for name in names
    ]


def _disk_bytes(folder: Path) -> int:
    """Return what the files of a folder take on the disk, each once."""
    taken = {}
    for path in _files(folder):
        try:
            status = path.lstat()
        except OSError:
            continue
        taken[status.st_ino] = status.st_blocks * 512
    return sum(taken.values())


def _allow(client_toml: Path, model_mb: int) -> None:
    """Let a site take models of this size, beyond what it takes unless told."""
    text, bound = client_toml.read_text(), f"received_bytes_max = {2 * model_mb * 1_000_000}"
    if "received_bytes_max" in text or "[policy]\n" not in text:
        raise RuntimeError(f"{client_toml} is not as it is after enrolment")
    client_toml.write_text(text.replace("[policy]\n", f"[policy]\n{bound}\n"))


def _seconds_of_dd(path: Path, model_mb: int) -> float:
    """Return how long it takes to write a model's bytes with dd, durably."""
    began_s = time.perf_counter()
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={path}", "bs=1000000", f"count={model_mb}", "conv=fdatasync"],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    taken_s = time.perf_counter() - began_s
    path.unlink()
    return taken_s


if __name__ == "__main__":
    main()
