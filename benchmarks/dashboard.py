"""The dashboard's pages with 200 agents connected and a run of 1,000 rounds: how fast they answer.

The rounds are those of a run that trains; so many that it takes minutes, so the run is of a tiny model.
Each page is asked for many times over a connection that stays open, and once after another run was shown.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.agents import enroll_many
from harness.fleet import many_agents, run_to_end
from harness.report import report

from meadow.cli.demo import DemoFederation
from meadow.server.remote.connection import admin_stub
from meadow.transport import fleet_pb2 as pb

APP = Path(__file__).parent / "apps" / "constant"
AGENTS = 200
ROUNDS = 1000
COHORT = 10
REPEATS = 30


def main() -> None:
    """Measure and print."""
    os.environ["MODEL_MB"] = "0"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with DemoFederation(folder, APP) as federation:
            federation.start_server()
            enroll_many(federation.server_dir, folder / "agents", APP, AGENTS)
            with many_agents(folder / "agents", AGENTS):
                _wait_for_all(federation.server_dir)
                settings = [f"run.rounds={ROUNDS}", f"run.cohort={COHORT}"]
                settings += [f"simulation.clients={AGENTS}"]
                run_to_end(federation.server_dir, APP, *settings)
                rows = _measure(federation.server_dir)
    slowest = max(row["slowest_ms"] for row in rows)
    figures = {"agents": AGENTS, "rounds": ROUNDS, "slowest_ms": slowest}
    figures |= {f"{row['page']}_ms": row["median_ms"] for row in rows}
    report("dashboard", rows, figures)


def _measure(server_dir: Path) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "meadow", "server", "page", "--dir", str(server_dir)]
    process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        link = process.stdout.readline().split()[-1]
        host, _, path = link.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(host)
        connection.request("GET", f"/{path}")
        answer = connection.getresponse()
        answer.read()
        cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]
        pages = {"overview": "/", "runs": "/runs", "sites": "/sites", "events": "/events"}
        pages["run"] = "/runs/1"
        rows = []
        for name, page in pages.items():
            spent = [_ask(connection, page, cookie) for _ in range(REPEATS)]
            rows.append(
                {
                    "page": name,
                    "first_ms": round(spent[0] * 1e3, 1),
                    "median_ms": round(statistics.median(spent[1:]) * 1e3, 1),
                    "slowest_ms": round(max(spent) * 1e3, 1),
                }
            )
        return rows
    finally:
        process.terminate()
        process.wait()


def _ask(connection: http.client.HTTPConnection, page: str, cookie: str) -> float:
    begin_s = time.perf_counter()
    connection.request("GET", page, headers={"Cookie": cookie})
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise RuntimeError(json.dumps({"page": page, "status": answer.status}))
    return time.perf_counter() - begin_s


def _wait_for_all(server_dir: Path) -> None:
    with admin_stub(server_dir, None) as stub:
        while stub.Status(pb.Empty()).connected < AGENTS:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
