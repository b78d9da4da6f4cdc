"""Run a federation under random faults, and compare its models with that of an undisturbed run.

`PYTHONPATH=shared python -m federation.soak --seconds 600 --seed 1`, in the folder tests. Every run has to end with the bytes of
the undisturbed one; a run that a fault ends says why, and is resumed as an operator does it. A
model of other bytes, a run that does not end, or an end without a cause ends the soak with 1. It may be
stopped (SIGSTOP) and go on: what is waited for is given as long as it ran.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from meadow.errors import MeadowError
from meadow.server.remote.connection import admin_stub
from meadow.transport import fleet_pb2 as pb

from ..processes import PATIENCE_S, Federation, Patience, Process
from .faults import GROUPS, Disks, Faults, through
from .lines import Lines

CLIENTS = 3
ROOT = Path(__file__).parents[3]
DIGITS = ROOT / "examples" / "digits"
CONSTANT = ROOT / "benchmarks" / "apps" / "constant"
"""An app whose model is as large as is wished."""
CAUSES = (
    "damaged", "is not what was submitted", "has changed on the disk", "full", "No space left", "quorum",
    "clients answered", "need", "too few", "worker died", "cannot be", "checksum", "evaluat", "update",
)  # fmt: skip
"""What a cause says at least."""
ROUND_S_MAX = 900.0
"""However often something happens meanwhile."""


class Soak:
    """A federation, and runs of one app whose model is known."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        rounds: int,
        pause_s: float,
        model_mb: int,
        groups: list[str],
    ) -> None:
        self._rng = random.Random(seed)
        self._pause_s = (0.0, 2.0 * pause_s)
        self._disks = Disks(model_mb)
        self.on_disks = self._disks.make(folder / "server")
        for index in range(CLIENTS):
            self.on_disks = self._disks.make(folder / f"client-{index}") and self.on_disks
        if not self.on_disks:
            groups = [group for group in groups if group != "disks"]
        self.settings = [
            f"run.rounds={rounds}", f"run.min_clients={CLIENTS}", "run.deadline_s=60",
            f"simulation.clients={CLIENTS}",
        ]  # fmt: skip
        if model_mb:
            os.environ["MODEL_MB"] = str(model_mb)
            app = shutil.copytree(CONSTANT, folder / "constant")
        else:
            self.settings.append("training.epochs=2")
            app = DIGITS
        self._fleet = Federation(folder, app)
        self._fleet.start_server()
        self._lines = [Lines(self._fleet.fleet_port, self._rng) for _ in range(CLIENTS)]
        for index, line in enumerate(self._lines):
            self._fleet.enroll(index)
            through(self._fleet.client_dir(index), line)
            command = ["client", "start", "--dir", str(self._fleet.client_dir(index))]
            self._fleet.clients.append(Process(command, folder / f"client-{index}.log"))
            self._fleet.clients[-1].start()
        self.faults = Faults(
            self._fleet, self._lines, self._disks, self._rng, groups=groups, model_mb=model_mb
        )
        self.causes: Counter[str] = Counter()
        self.equal = self.resumed = 0

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

    def one(self, reference: bytes, goes_on: Callable[[], bool]) -> None:
        """Run the app to its end, under faults while `goes_on`.

        Raises:
            AssertionError: its model is another one, it does not go on, or a cause is none.
        """
        run, patience, committed = self._fleet.submit(*self.settings), Patience(ROUND_S_MAX), 0
        print(f"run {run}", flush=True)
        while (now := self._status(run)).status != "finished":
            if now.round != committed:
                patience, committed = Patience(ROUND_S_MAX), now.round
            assert patience, f"run {run} does not go on: {now}"
            if now.status in ("failed", "stopped"):
                if not self._go_on(run, now.cause):
                    return
            elif goes_on():
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
        patience = Patience(PATIENCE_S)
        while True:
            try:
                with admin_stub(self._fleet.server_dir, None) as stub:
                    return stub.ShowRun(pb.RunId(id=run), timeout=20).run
            except MeadowError:
                assert patience, "the server does not answer"
                time.sleep(0.2)


def main() -> int:
    """Soak for as long as it is told; returns the exit code."""
    parser = argparse.ArgumentParser(prog="soak")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between two faults")
    parser.add_argument("--model-mb", type=int, default=0, help="size of the model; 0: digits")
    parser.add_argument("--faults", default=",".join(GROUPS), help="kinds, separated by commas")
    parser.add_argument(
        "--points", type=int, help="so many kills and harmed connections are enough"
    )
    given = parser.parse_args()
    groups = given.faults.split(",")
    if unknown := set(groups) - set(GROUPS):
        parser.error(
            f"no kind of faults: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}"
        )
    folder = Path(tempfile.mkdtemp(prefix="meadow-soak-"))
    begun_s = time.monotonic()
    soak = Soak(
        folder, seed=given.seed, rounds=given.rounds, pause_s=given.pause,
        model_mb=given.model_mb, groups=groups,
    )  # fmt: skip
    runs, problem = 0, ""
    try:
        reference = soak.undisturbed()
        begun_s, time_left = time.monotonic(), Patience(given.seconds)

        def goes_on() -> bool:
            return bool(time_left) and (given.points is None or soak.faults.points < given.points)

        while goes_on():
            runs += 1
            soak.one(reference, goes_on)
    except AssertionError as error:
        problem = str(error)
    finally:
        soak.close()
    figures = {
        "seed": given.seed,
        "model_mb": given.model_mb,
        "seconds": round(time.monotonic() - begun_s),
        "runs": runs,
        "byte_equal": soak.equal,
        "rounds": soak.equal * given.rounds,
        "resumed": soak.resumed,
        "faults": sum(n for kind, n in soak.faults.counts.items() if " " not in kind),
        "by_kind": dict(sorted(soak.faults.counts.items())),
        "kill_points": soak.faults.kill_points,
        "processes_killed": soak.faults.kills,
        "connections_harmed": soak.faults.harmed,
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
