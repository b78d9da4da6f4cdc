"""The same experiment in other frameworks' APIs and in Meadow's: examples/coming_from.

Every program as its user starts it, in a fresh process, so that seconds are those of a whole run:
imports, the start of a simulation, ten rounds of ten tiny clients. The originals run in the peers'
environments. A peer that cannot be installed, or does not run, is named with its error.

    python benchmarks/coming_from.py [flower pfl_research ...]
"""

from __future__ import annotations

import argparse
import runpy
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness.peers import peer_python, run
from harness.report import report

import meadow

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "coming_from"
PEERS = {
    "flower": "flower",
    "pfl_research": "pfl",
    "fedjax": "fedjax",
    "nvflare": "nvflare",
    "fedml": "fedml",
}
"""The folder of each original, and the environment that it needs."""
ARGUMENTS = {"fedml": ["--cf", "fedml_config.yaml"]}
TIME_LIMIT_S = 600.0


def main() -> None:
    """Run each original and its port, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(PEERS)}; else all")
    peers = parser.parse_args().peers or list(PEERS)
    rows: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    for peer in peers:
        try:
            row = _row(peer)
        except RuntimeError as error:
            print(f"{peer} is left out: {error}", flush=True)
            continue
        rows.append(row)
        figures |= {
            f"{peer}_params_apart": row["params apart"],
            f"{peer}_s": round(row["original s"], 1),
            f"{peer}_port_s": round(row["port s"], 1),
        }
    report("coming_from", rows, figures)


def _row(peer: str) -> dict[str, Any]:
    original = [str(peer_python(PEERS[peer])), "original.py", "model.npz", *ARGUMENTS.get(peer, ())]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / peer
        shutil.copytree(EXAMPLES / peer, place)
        original_s = _timed(original, place)
        theirs = dict(np.load(place / "model.npz"))
        if (place / "meadow.toml").is_file():
            port_s = _timed(
                [sys.executable, "-m", "meadow", "simulate", ".", "--out", "run"], place
            )
            told = meadow.load_run(place / "run")
            ours = {"accuracies": told.metrics["server.accuracy"].to_numpy(), **told.params()}
        else:
            port_s = _timed([sys.executable, "port.py", "model.npz"], place)
            ours = dict(np.load(place / "model.npz"))
    lines = runpy.run_path(str(EXAMPLES / "lines.py"))["counted"](EXAMPLES / peer)
    apart = max(float(np.abs(theirs[name] - ours[name]).max()) for name in ("weight", "bias"))
    return {
        "peer": peer,
        "original lines": lines[0],
        "port lines": lines[1],
        "original accuracy": float(theirs["accuracies"][-1]),
        "port accuracy": float(ours["accuracies"][-1]),
        "params apart": apart,
        "original s": original_s,
        "port s": port_s,
    }


def _timed(command: list[str], place: Path) -> float:
    start = time.perf_counter()
    run(command, cwd=place, time_limit_s=TIME_LIMIT_S)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
