"""A model of 20 MB over slow links: three agents, each behind 20 Mbit/s and 100 ms of its own.

The share of the link is what the params alone take of it (the headers of Ethernet, IP and TCP take 4 %), from when a
transfer begins to when it ends; int8, and auto which chooses it, are compared by whole rounds. Needs root, for network namespaces.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.fleet import run_to_end
from harness.report import report
from harness.slow_links import Link, leave_network, slow_link

from meadow.cli.demo import DemoFederation

APP = Path(__file__).parent / "apps" / "constant"
AGENTS = 3
MODEL_MB = 20
MBIT_PER_S = 20
DELAY_S = 0.05
ROUNDS = {"none": 3, "int8": 7, "auto": 5}
"""Of each run; the median leaves out that apps are loaded in the first. The lines are known to be slow before the last."""


class LinkedFederation(DemoFederation):
    """A federation whose agents run behind links; the server listens on this network's addresses."""

    link: Link | None = None

    def _start(self, name: str, command: Sequence[str], *, until: str) -> dict[str, Any]:
        if name == "server":
            settings = self.server_dir / "server.toml"
            found = re.subn(
                "^listen = .*", 'listen = "0.0.0.0"', settings.read_text(), flags=re.MULTILINE
            )
            settings.write_text(found[0] if found[1] else f'listen = "0.0.0.0"\n{found[0]}')
        with self.link.entered() if self.link else nullcontext():
            return super()._start(name, command, until=until)


def main() -> None:
    """Measure and print."""
    os.environ["MODEL_MB"] = str(MODEL_MB)
    os.environ["OMP_NUM_THREADS"] = "1"
    leave_network()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        federation = stack.enter_context(LinkedFederation(Path(folder), APP))
        port = int(federation.start_server().rpartition(":")[2])
        links = []
        for number in range(AGENTS):
            slow = slow_link(number, port, mbit_per_s=MBIT_PER_S, delay_s=DELAY_S)
            federation.link = stack.enter_context(slow)
            links.append(federation.link)
            federation.add_client(f"site-{number}")
        settings = [f"run.min_clients={AGENTS}", f"simulation.clients={AGENTS}"]
        watched = _Watched(links)
        run_to_end(federation.server_dir, APP, *settings, "run.rounds=1")
        watched.stop()
        ideal_s = MODEL_MB * 8 / MBIT_PER_S
        share = {
            way: min(ideal_s / watched.seconds(way, index) for index in range(AGENTS))
            for way in ("tx", "rx")
        }
        round_s = {}
        for codec, rounds in ROUNDS.items():
            how = [f"compression.{way}={codec}" for way in ("upload", "download")]
            how = [*settings, *(how if codec != "none" else []), f"run.rounds={rounds}"]
            rows = run_to_end(federation.server_dir, APP, *how)
            round_s[codec] = statistics.median(row["duration_s"] for row in rows)
    figures = {
        "share_of_link_down": round(share["tx"], 3),
        "share_of_link_up": round(share["rx"], 3),
        "round_s": round(round_s["none"], 2),
        "int8_round_s": round(round_s["int8"], 2),
        "int8_speedup": round(round_s["none"] / round_s["int8"], 2),
        "auto_speedup": round(round_s["none"] / round_s["auto"], 2),
    }
    table = [{"what": name, "figure": value} for name, value in figures.items()]
    report("slow_link", table, figures)


class _Watched:
    """Samples the links' counters, until stopped."""

    def __init__(self, links: list[Link]) -> None:
        self._links = links
        self._rows: list[tuple[float, dict[str, list[int]]]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stopped.wait(0.05):
            counts = {way: [link.count(way) for link in self._links] for way in ("tx", "rx")}
            self._rows.append((time.monotonic(), counts))

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def seconds(self, way: str, index: int) -> float:
        """Return how long a link was busy one way, its pauses included; a tenth of its rate counts as busy."""
        rows = [(at_s, row[way][index]) for at_s, row in self._rows]
        busy = [
            (begun_s, ended_s)
            for (begun_s, before), (ended_s, after) in pairwise(rows)
            if (after - before) * 8 > MBIT_PER_S * 1e5 * (ended_s - begun_s)
        ]
        return busy[-1][1] - busy[0][0]


if __name__ == "__main__":
    main()
