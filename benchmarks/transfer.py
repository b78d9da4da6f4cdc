"""How fast a large model moves: whole rounds against bare grpc-python streams, in one run.

A round sends the model to two agents and two updates back, over mutual TLS; between them each
agent makes a training step that adds a constant of its own, everything is stored durably and
checked, and the server aggregates and commits. The bare streams only move the same bytes between
as many processes. `python benchmarks/transfer.py 1000` does one run with another size in MB.
Agents keep the last models: from the sixth round on all files are written over those of earlier
rounds, as they are for the rest of a run, so the median is of 19 rounds.

For comparison, with 100 MB on a 2-core machine NVFlare 2.9 took 4.7-4.9 s a round and Flower 1.41
8.8 s.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from harness.bare_grpc import seconds_of_bare_rounds
from harness.fleet import run_to_end
from harness.report import report

from meadow.cli.demo import DemoFederation

APP = Path(__file__).parent / "apps" / "constant"
CLIENTS = 2
BARE_ROUNDS = 6
CHUNK_BYTES = (256 << 10, 1 << 20)
"""The bare streams get the better of these."""


def main(model_mb: int, rounds: int) -> None:
    """Measure and print."""
    os.environ["MODEL_MB"] = str(model_mb)
    payload_bytes = model_mb * 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        bare_s = min(
            statistics.median(
                seconds_of_bare_rounds(
                    Path(folder),
                    clients=CLIENTS,
                    payload_bytes=payload_bytes,
                    rounds=BARE_ROUNDS,
                    chunk_bytes=chunk_bytes,
                )[1:]
            )
            for chunk_bytes in CHUNK_BYTES
        )
        with DemoFederation(Path(folder), APP) as federation:
            federation.start_server()
            for index in range(CLIENTS):
                federation.add_client(f"site-{index}")
            rows = run_to_end(federation.server_dir, APP, f"run.rounds={rounds}")
    round_s = statistics.median(row["duration_s"] for row in rows[1:])
    moved = 2 * CLIENTS * payload_bytes
    moved_really = rows[-1]["bytes_sent"] + rows[-1]["bytes_received"]
    figures = {
        "model_mb": model_mb,
        "round_s": round(round_s, 3),
        "bare_s": round(bare_s, 3),
        "gb_per_s": round(moved / round_s / 1e9, 3),
        "bare_gb_per_s": round(moved / bare_s / 1e9, 3),
        "share_of_bare_grpc": round(bare_s / round_s, 3),
        "bytes_moved_a_round": moved_really,
    }
    table = [
        {"what": "Meadow, a whole round", "s": round_s, "GB/s": moved / round_s / 1e9},
        {"what": "bare gRPC streams", "s": bare_s, "GB/s": moved / bare_s / 1e9},
    ]
    report("transfer" if model_mb == 100 else f"transfer_{model_mb}", table, figures)


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    main(size, rounds=20 if size <= 100 else 3)
