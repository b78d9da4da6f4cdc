"""Rounds of a model of 4 GB with two agents: memory, disk, time, and what a cut transfer costs.

`python benchmarks/large_model.py --model-mb 1000` takes another size. The agents are a process each,
with a trainer that adds a number and holds a block at a time. The first round is left alone. When 90 %
of the model has come to them in the second round, the first agent is killed by kill -9 and started again, and
the second one's connections are cut; the same when they have sent 90 % of their updates in the third.
Every round must count both. Each agent has a line of its own to the server, `harness/cut_line.py`,
which counts what moves again: `moved_again_share` is the most of the four, beyond one model.

Peaks are VmHWM: resident memory, files that are mapped included. RssAnon, the part that no file backs,
is beside it in the table. The disk is that of the server's folder, a file with several names counted
once. `dd_ratio` is the first round's time in units of what `dd` takes to write as many bytes to the
same disk as the round moves, four models: two down and two up. `cpu s` in the table is processor time of all
rounds, which other programs do not change much.

Disk: `disk_said_mb` is what the run says before it begins that its server will take, and `disk_peak_mb` what the server's folder
took; `agent_disk_said_mb` and `agent_disk_peak_mb` are those of the agent that took most. The benchmark ends at once if the disk
has no room for all of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.agents import enroll_many
from harness.cut_line import CutLine
from harness.fleet import process_of, run_to_end, status_kb
from harness.report import report

from meadow.cli.demo import DemoFederation
from meadow.config.client_config import RECEIVED_BYTES_MAX
from meadow.server.daemon.server_dir import ServerFolder

APP = Path(__file__).parent / "apps" / "constant"
AGENTS, ROUNDS = 2, 3
MODEL_MB = 4000
CUT_AT = 0.9
"""The share of a model that its agent's line has carried when it is interrupted."""
WAYS = {2: "down", 3: "up"}
"""By round: which way the interrupted transfer goes."""
LOOKED_EVERY_S = 0.05


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
        rows, peaks, lines = _measured(Path(name), model_mb)
    again = {
        f"{way} {number}": line.carried_in_round[way] / (model_mb * 1e6) - 1
        for number, line in enumerate(lines)
        for way in WAYS.values()
    }
    round_s = rows[0]["duration_s"]
    table = [
        {
            "what": who,
            "peak MB": peak["VmHWM"] / 1e3,
            "without files MB": peak["RssAnon"] / 1e3,
            "cpu s": peaks.cpu_s[who],
        }
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
        "killed_received_again_share": round(again["down 0"], 4),
        "killed_sent_again_share": round(again["up 0"], 4),
        "cut_received_again_share": round(again["down 1"], 4),
        "cut_sent_again_share": round(again["up 1"], 4),
        "cut_at": CUT_AT,
        "disk_said_mb": round(peaks.said["server_bytes"] / 1e6),
        "disk_peak_mb": round(peaks.disk_bytes / 1e6),
        "agent_disk_said_mb": round(peaks.said["client_bytes"] / 1e6),
        "agent_disk_peak_mb": round(peaks.agent_disk_bytes / 1e6),
        "all_rounds_s": round(sum(row["duration_s"] for row in rows), 2),
        "round_s": round(round_s, 2),
        "dd_s": round(2 * AGENTS * dd_s, 2),
        "dd_ratio": round(round_s / (2 * AGENTS * dd_s), 2),
    }
    report("large_model", table, figures)


class _Peaks:
    """What the processes and the folders have held at most, and what was said of the disk."""

    def __init__(self, server_dir: Path, agent_dirs: Sequence[Path]) -> None:
        self.processes: dict[str, dict[str, int]] = {}
        self.cpu_s: dict[str, float] = {}
        self.said: dict[str, int] = {}
        self.disk_bytes = self.agent_disk_bytes = 0
        self._server_dir, self._agent_dirs = server_dir, agent_dirs
        self._cpu_of: dict[tuple[str, int], float] = {}

    def look(self, pids: dict[str, int]) -> None:
        """Look at processes, by what they are, and at the folder."""
        for who, pid in pids.items():
            seen = self.processes.setdefault(who, {"VmHWM": 0, "RssAnon": 0})
            for field in seen:
                seen[field] = max(seen[field], status_kb(pid, field))
            self._cpu_of[who, pid] = _cpu_s(pid) or self._cpu_of.get((who, pid), 0.0)
            self.cpu_s[who] = sum(s for (each, _), s in self._cpu_of.items() if each == who)
        for folder in self._agent_dirs:
            self.agent_disk_bytes = max(self.agent_disk_bytes, _disk_bytes(folder))
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


class _Line:
    """An agent's line, which is interrupted once in each of the rounds of `WAYS`."""

    def __init__(self, target: int, model_bytes: int, interrupt: Callable[[CutLine], None]) -> None:
        self._line = CutLine(target)
        self._model_bytes, self._interrupt = model_bytes, interrupt
        self._began: dict[str, int] = {}
        self.port = self._line.port
        self.interruptions = 0
        self.carried_in_round: dict[str, int] = {}
        """By way: what was carried in the round whose transfer that way was interrupted."""

    def begin(self, number: int) -> None:
        """A round begins, and the one before has ended."""
        if before := WAYS.get(number - 1):
            self.carried_in_round[before] = self._line.carried[before] - self._began[before]
        if way := WAYS.get(number):
            self._began[way] = self._line.carried[way]
            self._line.once(way, int(CUT_AT * self._model_bytes), self._strike)

    def _strike(self) -> None:
        self.interruptions += 1
        self._interrupt(self._line)


def _measured(folder: Path, model_mb: int) -> tuple[list[dict[str, float]], _Peaks, list[_Line]]:
    """Run the app; return its rows, the peaks, and the agents' lines."""
    with DemoFederation(folder, APP) as federation:
        federation.start_server()
        server_dir = federation.server_dir
        enroll_many(server_dir, folder / "agents", APP, AGENTS)
        fleet = int(ServerFolder(server_dir).listening()["fleet"].rpartition(":")[2])
        agents: list[_Agent] = []

        def kill(line: CutLine) -> None:
            agents[0].kill_and_start()

        lines = [_Line(fleet, model_mb * 1_000_000, interrupt) for interrupt in (kill, CutLine.cut)]
        for number, line in enumerate(lines):
            _allow(folder / "agents" / f"agent-{number:03d}" / "client.toml", model_mb, line.port)
            agents.append(_Agent(folder / "agents", number))
        folders = [folder / "agents" / f"agent-{number:03d}" for number in range(AGENTS)]
        peaks = _Peaks(server_dir, folders)
        daemon = process_of("server", "start", str(server_dir))

        def look() -> None:
            pids = {"daemon": daemon, "worker": _worker_of(daemon)}
            pids |= {f"agent {number}": agent.pid for number, agent in enumerate(agents)}
            peaks.look(pids)

        committed = 0

        def on_event(kind: str) -> None:
            nonlocal committed
            if kind == "round_committed":
                committed += 1
                for line in lines:
                    line.begin(committed + 1)

        def on_detail(kind: str, detail: dict[str, int]) -> None:
            if kind == "disk_needed":
                peaks.said = detail
                needed = detail["server_bytes"] + AGENTS * detail["client_bytes"]
                if needed > shutil.disk_usage(folder).free:
                    raise RuntimeError(f"{needed} bytes of disk are needed at {folder}")

        settings = [f"run.rounds={ROUNDS}", f"run.min_clients={AGENTS}", "run.deadline_s=3600"]
        try:
            with _often(look):
                rows = run_to_end(
                    server_dir, APP, *settings, on_event=on_event, on_detail=on_detail
                )
        finally:
            for agent in agents:
                agent.stop()
    counts, struck = [row["clients"] for row in rows], [line.interruptions for line in lines]
    if counts != [AGENTS] * ROUNDS or struck != [len(WAYS)] * AGENTS:
        raise RuntimeError(f"{counts} clients in the rounds, {struck} interruptions of the agents")
    return rows, peaks, lines


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


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process so far, 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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


def _allow(client_toml: Path, model_mb: int, port: int) -> None:
    """Let a site take models of this size, beyond what it takes unless told, by a line of its own."""
    text = client_toml.read_text()
    bound = f"received_bytes_max = {max(RECEIVED_BYTES_MAX, (model_mb + 1) * 1_000_000)}"
    if "received_bytes_max" in text or "[policy]\n" not in text:
        raise RuntimeError(f"{client_toml} is not as it is after enrolment")
    text = text.replace("[policy]\n", f"[policy]\n{bound}\n")
    client_toml.write_text(f'{text}\n[server]\naddresses = ["127.0.0.1:{port}"]\n')


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
