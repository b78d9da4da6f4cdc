"""Hostile connections that send half messages: the daemon's memory, and an honest run beside them.

    python benchmarks/hostile.py [--connections 50] [--only memory|run]

`slowdown` is the median round of a federation of two agents (those of round_latency) while all
connections of an attack begin messages again and again, over that of the same run left alone. The
attackers take their time from the same cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness.fleet import run_to_end
from harness.report import report

from meadow.cli.demo import DemoFederation
from meadow.server.daemon.daemon import MESSAGE_BYTES_MAX
from meadow.transport.keys import KeyPair
from tests.faults.live_server import LiveServer
from tests.faults.raw_http2 import RawHttp2

DECLARED_BYTES = MESSAGE_BYTES_MAX - 2048
ENROL_BYTES = 60 << 10
STREAMS = 64
ATTACK_S = 30.0
AFTERWARDS_S = 3.0
AGAIN_S = 5.0
PATHS = {
    "connect": "/meadow.v1.Fleet/Connect",
    "upload": "/meadow.v1.Fleet/Upload",
    "download": "/meadow.v1.Fleet/Download",
    "admin": "/meadow.v1.Admin/Status",
    "enrol": "/meadow.v1.Enrollment/Enroll",
}


APP = Path(__file__).parent / "apps" / "digits"
ROUNDS, WARM_UP_ROUNDS = 60, 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--only", choices=("memory", "run"))
    options = parser.parse_args()
    if options.only != "run":
        memory(options.connections)
    if options.only != "memory":
        beside(options.connections)


def beside(connections: int) -> None:
    """Time an honest run alone and beside each attack, in turns."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(LiveServer(Path(folder) / "server")) as server,
        DemoFederation(Path(folder), APP) as federation,
    ):
        for index in range(2):
            federation.add_client(f"site-{index}")
        pair = server.enroll("mallory", Path(folder))
        rows = []
        for name, path in PATHS.items():
            alone_ms = _round_ms(federation)
            address, declared = server.fleet, DECLARED_BYTES
            if name == "enrol":
                address, declared = server.enroll_address, ENROL_BYTES
            given = address, None if name == "enrol" else pair, path, declared, connections
            attacker = get_context("spawn").Process(target=attack_on, args=given, daemon=True)
            attacker.start()
            time.sleep(AFTERWARDS_S)
            beside_ms = _round_ms(federation)
            attacker.kill()
            attacker.join()
            row = {"attack": name, "alone ms": alone_ms, "beside ms": beside_ms}
            rows.append({**row, "slowdown": round(beside_ms / alone_ms, 2)})
    figures = {"slowdown_max": max(row["slowdown"] for row in rows)}
    report("hostile", rows, figures)


def _round_ms(federation: DemoFederation) -> float:
    rows = run_to_end(federation.server_dir, APP, f"run.rounds={ROUNDS}")
    return round(median(row["duration_s"] * 1e3 for row in rows[WARM_UP_ROUNDS:]), 1)


def attack_on(address: str, pair: KeyPair | None, path: str, declared: int, count: int) -> None:
    """Begin messages on so many connections, every few seconds again, and end none."""

    def hold(_: int) -> None:
        while True:
            with suppress(OSError), closing(RawHttp2(address, pair)) as hostile:
                for stream in [hostile.open(path) for _ in range(STREAMS)]:
                    hostile.begin(stream, declared, declared - 10, 0.2)
                hostile.ended.wait(AGAIN_S)
            time.sleep(AGAIN_S / 10)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(hold, range(count)))


def memory(connections: int) -> None:
    """Print a line for each attack."""
    for name, path in PATHS.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            closing(LiveServer(Path(folder) / "server")) as server,
        ):
            pair = None if name == "enrol" else server.enroll("mallory", Path(folder))
            address = server.enroll_address if name == "enrol" else server.fleet
            declared = ENROL_BYTES if name == "enrol" else DECLARED_BYTES
            idle = server.resident_bytes()
            peak = attack(server, address, pair, path, declared, connections)
            time.sleep(AFTERWARDS_S)
            after = server.resident_bytes()
            sizes = ", ".join(f"{size / 1e6:.0f} MB" for size in (idle, peak, after))
            print(f"{name}: {connections} connections; idle, peak, after: {sizes}", flush=True)


def attack(
    server: LiveServer, address: str, pair: KeyPair | None, path: str, declared: int, count: int
) -> int:
    """Begin messages on so many connections, end none, and return the daemon's peak."""
    held: list[RawHttp2] = []

    def hold(_: int) -> None:
        hostile = RawHttp2(address, pair)
        held.append(hostile)
        for stream in [hostile.open(path) for _ in range(STREAMS)]:
            hostile.begin(stream, declared, declared - 10, 0.2)

    peak, since_s = 0, time.monotonic()
    with ThreadPoolExecutor(count) as pool:
        sent = [pool.submit(hold, number) for number in range(count)]
        while not all(each.done() for each in sent) and time.monotonic() - since_s < ATTACK_S:
            peak = max(peak, server.resident_bytes())
            time.sleep(0.05)
        peak = max(peak, server.resident_bytes())
        for hostile in held:
            hostile.close()
    return peak


if __name__ == "__main__":
    main()
