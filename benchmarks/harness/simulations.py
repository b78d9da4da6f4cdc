"""Runs `meadow simulate` as a user would, and times its rounds from outside."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["simulate"]

BENCHMARKS = Path(__file__).resolve().parents[1]
TIME_LIMIT_S = 1800.0


def simulate(
    app: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    first_rounds: int | None = None,
    meadow: Path | None = None,
) -> dict[str, Any]:
    """Simulate benchmarks/apps/APP and return what the peers' programs return.

    With `first_rounds` the run is interrupted after so many: the beginning of a long one. `meadow` is
    a folder with another Meadow than the installed one.

    "round_s": seconds from one committed round to the next, all of Meadow's work in between
    included; "first_round_s": from the command to the end of the first round; "accuracy": by
    round, where the server evaluated; "peak_rss_mb"; "executor".

    Raises:
        RuntimeError: the simulation failed.
    """
    given = meadow, BENCHMARKS / "peers", os.environ.get("PYTHONPATH")
    places = [str(place) for place in given if place]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(places), **(environment or {})}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "meadow", "simulate", str(BENCHMARKS / "apps" / app)]
        command += ["--out", f"{folder}/run", "--format", "json", *arguments]
        began_s = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True)
        outcome = _followed(process, began_s, first_rounds)
        _, status, usage = os.wait4(process.pid, 0)
        if status and len(outcome["round_s"]) + 1 != first_rounds:
            raise RuntimeError(f"meadow simulate {app} failed: {outcome['error'] or 'see above'}")
    return {**outcome, "peak_rss_mb": usage.ru_maxrss / 1024}


def _followed(
    process: subprocess.Popen[str], began_s: float, first_rounds: int | None
) -> dict[str, Any]:
    assert process.stdout is not None
    ends_s: list[float] = []
    accuracy: dict[int, float] = {}
    executor = error = ""
    for line in process.stdout:
        now_s = time.perf_counter()
        event = json.loads(line)
        if "error" in event:
            error = event["error"]
        elif event["event"] == "round_committed":
            ends_s.append(now_s)
            if event["server"]:
                accuracy[event["round"]] = event["server"]["accuracy"]
            if len(ends_s) == first_rounds:
                process.send_signal(signal.SIGINT)
                process.stdout.read()
                break
        elif event["event"] == "executor_chosen":
            executor = event["executor"]
    return {
        "round_s": [end - start for start, end in itertools.pairwise(ends_s)],
        "first_round_s": ends_s[0] - began_s if ends_s else None,
        "accuracy": accuracy,
        "executor": executor,
        "error": error,
    }
