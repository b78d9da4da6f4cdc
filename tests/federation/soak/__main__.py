"""Run a federation under random faults, and compare its models with that of an undisturbed run.

`python -m federation.soak --seconds 600 --seed 1`, in the folder tests. Every run has to end with the bytes of
the undisturbed one; a run that a fault ends says why, and is resumed as an operator does it. A
model of other bytes, a run that does not end, or an end without a cause ends the soak with 1.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from meadow.cli.admin import admin_stub
from meadow.errors import MeadowError
from meadow.transport import fleet_pb2 as pb

from ..processes import PATIENCE_S, Federation, Process
from .faults import Disks, Faults, through
from .lines import Lines

CLIENTS = 3
DIGITS = Path(__file__).parents[3] / "examples" / "digits"
CAUSES = (
    "damaged", "is not what was submitted", "has changed on the disk", "full", "No space left", "quorum",
    "clients answered", "need", "too few", "worker died", "cannot be", "checksum", "evaluat", "update",
)  # fmt: skip
"""What a cause says at least."""
RUN_S_MAX = 900.0


class Soak:
    """A federation, and runs of one app whose model is known."""

    def __init__(self, folder: Path, *, seed: int, rounds: int, pause_s: float) -> None:
        self._rng = random.Random(seed)
        self._pause_s = (0.0, 2.0 * pause_s)
        self._disks = Disks()
        on_disks = self._disks.make(folder / "server")
        for index in range(CLIENTS):
            on_disks = self._disks.make(folder / f"client-{index}") and on_disks
        self.settings = (
            f"run.rounds={rounds}", f"run.min_clients={CLIENTS}", "run.deadline_s=60",
            f"simulation.clients={CLIENTS}", "training.epochs=2",
        )  # fmt: skip
        self._fleet = Federation(folder, DIGITS)
        self._fleet.start_server()
        self._lines = [Lines(self._fleet.fleet_port, self._rng) for _ in range(CLIENTS)]
        for index, line in enumerate(self._lines):
            self._fleet.enroll(index)
            through(self._fleet.client_dir(index), line)
            command = ["client", "start", "--dir", str(self._fleet.client_dir(index))]
            self._fleet.clients.append(Process(command, folder / f"client-{index}.log"))
            self._fleet.clients[-1].start()
        self.faults = Faults(self._fleet, self._lines, self._disks, self._rng, on_disks=on_disks)
        self.causes: Counter[str] = Counter()
        self.equal = self.resumed = 0
        self.on_disks = on_disks

    def close(self) -> None:
        """End everything that was started."""
        self._fleet.close()
        for line in self._lines:
            line.close()
        self._disks.close()

    def undisturbed(self) -> bytes:
        """Return the model that every run is to end with."""
        run = self._fleet.submit(*self.settings)
        while self._status(run).status not in ("finished", "failed"):
            time.sleep(0.1)
        assert self._status(run).status == "finished", self._status(run).cause
        return self._fleet.model(run)

    def one(self, reference: bytes, until_s: float) -> None:
        """Run the app under faults to its end.

        Raises:
            AssertionError: its model is another one, it does not end, or a cause is none.
        """
        run, begun_s = self._fleet.submit(*self.settings), time.monotonic()
        print(f"run {run}", flush=True)
        while (now := self._status(run)).status != "finished":
            assert time.monotonic() < begun_s + RUN_S_MAX, f"run {run} does not end: {now}"
            if now.status in ("failed", "stopped"):
                if not self._go_on(run, now.cause):
                    return
            elif time.monotonic() < until_s:
                time.sleep(self._rng.uniform(*self._pause_s))
                self.faults.happen(run)
            else:
                time.sleep(0.2)
        model = self._fleet.model(run)
        assert model == reference, f"run {run} ended with another model: {self._fleet.run_dir(run)}"
        self.equal += 1
        shutil.rmtree(self._fleet.run_dir(run))

    def _go_on(self, run: int, cause: str) -> bool:
        """Resume a run that a fault has ended; False if it can only be submitted anew."""
        print(f"  run {run} failed: {cause}", flush=True)
        assert any(text in cause for text in CAUSES), f"run {run} ended with no cause: {cause!r}"
        self.causes[next(text for text in CAUSES if text in cause)] += 1
        if "is not what was submitted" in cause or "all checkpoints" in cause:
            return False
        self.resumed += 1
        with suppress(MeadowError), admin_stub(self._fleet.server_dir, None) as stub:
            stub.Resume(pb.RunId(id=run), timeout=60)
        return True

    def _status(self, run: int) -> Any:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                with admin_stub(self._fleet.server_dir, None) as stub:
                    return stub.ShowRun(pb.RunId(id=run), timeout=20).run
            except MeadowError:
                assert time.monotonic() < deadline_s, "the server does not answer"
                time.sleep(0.2)


def main() -> int:
    """Soak for as long as it is told; returns the exit code."""
    parser = argparse.ArgumentParser(prog="soak")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between two faults")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="meadow-soak-"))
    begun_s = time.monotonic()
    soak = Soak(folder, seed=given.seed, rounds=given.rounds, pause_s=given.pause)
    runs, problem = 0, ""
    try:
        reference = soak.undisturbed()
        begun_s = time.monotonic()
        until_s = begun_s + given.seconds
        while time.monotonic() < until_s:
            runs += 1
            soak.one(reference, until_s)
    except AssertionError as error:
        problem = str(error)
    finally:
        soak.close()
    figures = {
        "seed": given.seed,
        "seconds": round(time.monotonic() - begun_s),
        "runs": runs,
        "byte_equal": soak.equal,
        "resumed": soak.resumed,
        "faults": sum(n for kind, n in soak.faults.counts.items() if " " not in kind),
        "by_kind": dict(sorted(soak.faults.counts.items())),
        "connections_harmed": sum(line.harmed for line in soak._lines),
        "causes": dict(soak.causes),
        "full_disks": soak.on_disks,
    }
    print(json.dumps({"name": "soak", "figures": figures}))
    if problem:
        print(f"soak: {problem}\nthe folder is {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
