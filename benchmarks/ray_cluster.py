"""Two raylets of one CPU each on this machine, against one of them; and one killed in mid-round.

The CNN of simulation_cnn.py. The ideal is half of the time that one raylet of one CPU takes. Then the
second raylet is killed while it runs clients: they run again, and the model is compared with the
undisturbed one, and with that of the sequential executor.

    python benchmarks/ray_cluster.py [--repeats 2] [--rounds 5]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

from harness.report import report
from harness.simulations import BENCHMARKS, simulate

WAIT_S = 60.0
HOST = "127.0.0.1"
"""Ray would take the machine's own address, which others can reach."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # otherwise Ray replaces 127.0.0.1 by that address
}


def main() -> None:
    """Run everything on a cluster of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT, PYTHONPATH=str(BENCHMARKS / "peers"))  # raylets pass it on
    from ray.cluster_utils import Cluster

    rounds = ("--rounds", str(options.rounds + 1))
    times: dict[str, list[float]] = {"sequential": [], "one raylet": [], "two raylets": []}

    def time_round(who: str, *arguments: str) -> None:
        run = simulate("simulation_cnn", *rounds, *arguments)
        times[who].append(median(run["round_s"]))

    cluster = Cluster(initialize_head=True, head_node_args=_node(), shutdown_at_exit=True)
    try:
        for _ in range(options.repeats):
            time_round("sequential", "--executor", "sequential")
            time_round("one raylet", *_on(cluster.address, 1))
            second = cluster.add_node(**_node())
            cluster.wait_for_nodes()
            time_round("two raylets", *_on(cluster.address, 2))
            cluster.remove_node(second)
        sequential, _ = _model("--executor", "sequential")
        second = cluster.add_node(**_node())
        cluster.wait_for_nodes()
        undisturbed, _ = _model(*_on(cluster.address, 2))
        raylet = second.all_processes["raylet"][0].process.pid

        def kill() -> None:
            _wait_for_clients(raylet)
            cluster.remove_node(second, allow_graceful=False)

        disturbed, lost = _model(*_on(cluster.address, 2), disturb=kill)
    finally:
        cluster.shutdown()
    rows = [{"who": name, "round s": median(rounds_s)} for name, rounds_s in times.items()]
    report(
        "ray_cluster",
        rows,
        {
            "efficiency": round(median(times["one raylet"]) / median(times["two raylets"]) / 2, 3),
            "efficiency_of_sequential": round(
                median(times["sequential"]) / median(times["two raylets"]) / 2, 3
            ),
            "workers_lost": lost,
            "same_bits_after_a_kill": int(undisturbed == disturbed),
            "same_bits_as_sequential": int(sequential == disturbed),
        },
    )


def _node() -> dict[str, object]:
    return {
        "num_cpus": 1,
        "object_store_memory": 256 << 20,
        "include_dashboard": False,
        "node_ip_address": HOST,
    }


def _on(address: str, workers: int) -> tuple[str, ...]:
    settings = (f"simulation.address={address}", f"simulation.workers={workers}")
    return ("--executor", "ray", *(word for text in settings for word in ("--set", text)))


def _wait_for_clients(raylet: int) -> None:
    """Return when a worker of a raylet runs clients: Ray names the process after what it runs."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                running = b"GroupActor.run" in (folder / "cmdline").read_bytes()
                if int(parent) == raylet and running:
                    return
        time.sleep(0.02)
    raise RuntimeError(f"no worker of raylet {raylet} ran clients within {WAIT_S:g} s")


def _model(*arguments: str, disturb: Callable[[], None] = lambda: None) -> tuple[str, int]:
    """Return the hash of a run's model, and how many workers were lost; disturb after a round."""
    with tempfile.TemporaryDirectory() as folder:
        app = str(BENCHMARKS / "apps/simulation_cnn")
        command = [sys.executable, "-m", "meadow", "simulate", app, "--rounds", "3", *arguments]
        command += ["--out", f"{folder}/run", "--format", "json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lost = committed = 0
        for line in process.stdout:
            event = json.loads(line)["event"]
            lost += event == "worker_lost"
            committed += event == "round_committed"
            if event == "round_committed" and committed == 1:
                disturb()
        if process.wait():
            raise RuntimeError("meadow simulate failed; see above")
        return hashlib.sha256(Path(folder, "run/model.safetensors").read_bytes()).hexdigest(), lost


if __name__ == "__main__":
    main()
