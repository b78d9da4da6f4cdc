"""Idle agents behind proxies that cut idle connections: does an instruction get lost?

`PYTHONPATH=shared python -m federation.soak.idle --seconds 600 --cut 60`, in the folder tests. Each of two agents is
behind a proxy of its own: one that counts an agent's pings as traffic, and one that does not and so cuts
it again and again. Whenever both have been idle for longer than the cut, and at the end, a run of one
round wants both; what is lost, or done twice, ends this with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from idle_proxy import IdleProxy

from ..processes import Federation

APP = Path(__file__).parents[3] / "examples" / "digits"
PING_BYTES_MAX = 256
"""Pings of both sides and their answers, within TLS; a message with work is larger."""
SETTINGS = ("run.rounds=1", "run.min_clients=2", "simulation.clients=2", "training.epochs=1")


async def idle(federation: Federation, seconds: float, cut_s: float) -> int:
    """Keep a federation idle for so long, but for its runs; return an exit code."""
    proxies = [
        IdleProxy(federation.fleet_port, idle_s=cut_s, unnoticed_bytes=unnoticed)
        for unnoticed in (0, PING_BYTES_MAX)
    ]
    took_s: list[float] = []
    async with proxies[0], proxies[1]:
        await asyncio.to_thread(federation.start_server)
        for index, proxy in enumerate(proxies):
            await asyncio.to_thread(federation.enroll, index)
            with (federation.client_dir(index) / "client.toml").open("a") as file:
                file.write(f'\n[server]\naddresses = ["localhost:{proxy.port}"]\n')
        await asyncio.to_thread(federation.start_clients, 2)
        end_s = time.monotonic() + seconds
        while True:
            begin_s = time.monotonic()
            run = await asyncio.to_thread(federation.submit, *SETTINGS)
            summary = await asyncio.to_thread(federation.wait_for_end, run)
            took_s.append(time.monotonic() - begin_s)
            clients = [row["clients"] for row in federation.rounds(run)]
            if summary["status"] != "finished" or clients != [2]:
                print(f"run {run}: {json.dumps(summary)}, clients {clients}")
                return 1
            if time.monotonic() >= end_s:
                break
            await asyncio.sleep(min(1.25 * cut_s, max(0.0, end_s - time.monotonic())))
    return _told(federation, took_s, [proxy.cuts for proxy in proxies])


def _told(federation: Federation, took_s: list[float], cuts: list[int]) -> int:
    """Print what happened at each agent; return 1 if work was lost or done twice."""
    wrong = 0
    for index, client in enumerate(federation.clients):
        trained = len([each for each in client.events("training") if "training" in each["message"]])
        connected = len(client.events("connected"))
        wrong += trained != len(took_s)
        pings = "count" if index == 0 else "do not count"
        print(
            f"agent {index}, where pings {pings}: cut {cuts[index]} times, connected {connected} times, "
            f"asked to train {len(took_s)} times, trained {trained} times"
        )
    print(f"seconds of a run, from submitting to its end: {[round(each, 1) for each in took_s]}")
    return int(wrong > 0)


def main() -> None:
    """Read the options, and be idle."""
    parser = argparse.ArgumentParser(prog="federation.soak.idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--cut", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        federation = Federation(Path(name), APP)
        try:
            sys.exit(asyncio.run(idle(federation, options.seconds, options.cut)))
        finally:
            federation.close()


if __name__ == "__main__":
    main()
