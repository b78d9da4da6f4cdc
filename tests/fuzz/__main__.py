"""`make fuzz SECONDS=3600`: changes inputs of every decoder for as long as it is told.

An input that ends where none did before - with another error, or from another line - is kept in
the corpus, and is changed further from then on, in later runs too. An input that breaks a bound is
kept beside it, and the program ends with 1.
"""

from __future__ import annotations

import argparse
import json
import time
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from meadow.transport.codec import ENVELOPE_BYTES_MAX

from .bounds import BrokenError, outcome_of, within_memory
from .mutations import mutate_bytes
from .targets import Target, build_targets

BATCH = 200
BATCH_OF_SLOW_ONES = 10
KEPT_MAX = 2000
"""Inputs of one target in the corpus."""


class Fuzzed:
    """One target: what was found, and where inputs that led there are kept."""

    def __init__(self, name: str, target: Target, corpus: Path) -> None:
        self.name, self.target = name, target
        self.folder = corpus / "".join(c if c.isalnum() else "-" for c in name)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.kept = [path.read_bytes() for path in sorted(self.folder.glob("*.input"))]
        self.outcomes: set[tuple[str, ...]] = set()
        self.inputs = self.broken = 0
        self.slowest_s = 0.0
        for data in self.kept:
            self.outcomes.add(self._outcome(data))

    def batch(self, random: Random) -> None:
        """Run some inputs, new ones or changes of what was kept."""
        count = BATCH if self.target.cheap else BATCH_OF_SLOW_ONES
        for _ in range(count):
            if self.kept and random.random() < 0.5:
                data = mutate_bytes(random.choice(self.kept), random)
            else:
                data = self.target.mutate(random.choice(self.target.seeds), random)
            if len(data) > ENVELOPE_BYTES_MAX:
                continue  # nothing so large is ever read
            try:
                with within_memory():  # of reading it: to make it may take more
                    self._try(data)
            except BrokenError as error:
                self._broke(data, error)

    def _try(self, data: bytes) -> None:
        begun_s = time.process_time()
        outcome = self._outcome(data)
        self.slowest_s = max(self.slowest_s, time.process_time() - begun_s)
        self.inputs += 1
        if outcome not in self.outcomes and len(self.kept) < KEPT_MAX:
            self.kept.append(data)
            self._write(data, "input")
        self.outcomes.add(outcome)

    def _outcome(self, data: bytes) -> tuple[str, ...]:
        try:
            return outcome_of(lambda: self.target.run(data))
        except BrokenError as error:
            self._broke(data, error)
            return ("broken", str(error))

    def _broke(self, data: bytes, error: BrokenError) -> None:
        path = self._write(data, "broken")
        self.broken += 1
        print(f"{self.name}: {error}: {path}", flush=True)

    def _write(self, data: bytes, kind: str) -> Path:
        path = self.folder / f"{sha256(data).hexdigest()[:16]}.{kind}"
        path.write_bytes(data)
        return path


def main() -> int:
    """Fuzz all targets in turn; return 1 if one broke a bound."""
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--corpus", type=Path, default=Path("fuzz-corpus"))
    parser.add_argument("--seed", type=int, default=None)
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else time.time_ns()
    random, end_s = Random(seed), time.monotonic() + asked.seconds
    print(f"seed {seed}, {asked.seconds:g} s, corpus in {asked.corpus}", flush=True)
    with TemporaryDirectory() as folder:
        targets = build_targets(Path(folder))
        fuzzed = [Fuzzed(name, target, asked.corpus) for name, target in targets.items()]
        for each in cycle(fuzzed):
            if time.monotonic() >= end_s:
                break
            each.batch(random)
    for each in fuzzed:
        line = {"target": each.name, "inputs": each.inputs, "outcomes": len(each.outcomes),
                "kept": len(each.kept), "slowest_s": round(each.slowest_s, 3),
                "broken": each.broken}  # fmt: skip
        print(json.dumps(line))
    print(
        f"{sum(each.inputs for each in fuzzed)} inputs, {sum(each.broken for each in fuzzed)} broken"
    )
    return int(any(each.broken for each in fuzzed))


if __name__ == "__main__":
    raise SystemExit(main())
