"""A million devices: cohort against rounds and bytes, deadline against bias, the buffer of FedBuff, a tree.

A row of the first three tables is some runs of the app in this folder, with other seeds, in virtual
time. Who has the digits 8 and 9 also has most images, and so answers last: a deadline that is too
short trains a model that never saw them. The last table is a calculation: see tree.py.

    python examples/million_devices/study.py [--out study.png] [--target 0.9] [--seeds 3] [--quick]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from safetensors.torch import load_file

from meadow.simulations.run import simulate

__all__ = ["Row", "Run", "costs_of", "main", "run", "table_of"]

APP = Path(__file__).resolve().parent
TARGET = 0.9
IN_A_ROW = 3
"""So many evaluations must be at the target: one may be there by luck."""
COHORTS = {10: 150, 30: 150, 100: 150, 1_000: 80, 10_000: 40}
"""By size, how many rounds."""
LARGEST = max(COHORTS)
"""This cohort is run with one seed only, and in no trial: it takes minutes."""
DEADLINES_S = (4, 8, 12.2, 13.5, 15, 30, 60)
"""13.5 s is what one level of relays leaves of 15 s, and 12.2 s what two of them do."""
BUFFERS = {30: 200, 100: 90, 300: 50}
"""By size, how many rounds."""
CONCURRENCY = 300
"""Devices that train at once, with FedBuff and in the study of deadlines."""
Settings = dict[str, object]
PLAIN: Settings = {
    "strategy.server_optimizer": "sgd",
    "strategy.server_learning_rate": 1,
    "training.epochs": 2,
    "training.learning_rate": 0.2,
}
"""For FedBuff: with Adam at the server, whose steps do not shrink with the buffer, it does not converge."""
QUICK_CLIENTS, QUICK_ROUNDS = 20_000, 5

Evaluated = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of a run.

    Attributes:
        rounds, accuracies, hours, gigabytes: of each evaluation; accuracy is on images that no device
            has, time is virtual, traffic is that to and from the server together. The time and the
            traffic of evaluations are not in them.
        answered: the share of the instructed devices whose updates count.
        late_accuracy: of the last model, on the digits that only devices have that take long.
    """

    rounds: tuple[int, ...]
    accuracies: Evaluated
    hours: Evaluated
    gigabytes: Evaluated
    answered: float
    late_accuracy: float

    def place_of(self, target: float) -> int | None:
        """Return which evaluation is the first of `IN_A_ROW` with this accuracy; None if there is
        none."""
        reached = [value >= target for value in self.accuracies]
        last = len(reached) - IN_A_ROW
        return next((n for n in range(last + 1) if all(reached[n : n + IN_A_ROW])), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Runs with the same settings, a seed each."""

    name: str
    runs: tuple[Run, ...]

    def at(self, target: float, value_of: Callable[[Run], Sequence[float]]) -> list[float]:
        """Return `value_of` at the target, of those runs that reach it."""
        places = [(each, each.place_of(target)) for each in self.runs]
        return [value_of(each)[place] for each, place in places if place is not None]


def costs_of(
    rows: Sequence[dict[str, Any]], *, asynchronous: bool
) -> tuple[list[float], list[float]]:
    """Return the virtual seconds and the bytes of each round's training.

    A synchronous round that is evaluated instructs its devices twice; of asynchronous ones it is the
    last alone. Such a round counts as the median of the others.
    """
    ends_s = [row["virtual_s"] for row in rows]
    seconds = np.diff(ends_s, prepend=0.0).tolist()
    traffic = [float(row["bytes_sent"] + row["bytes_received"]) for row in rows]
    last = len(rows) - 1
    both = {n for n, row in enumerate(rows) if n == last or (row["server"] and not asynchronous)}
    for values in (seconds, traffic):
        alone = median(value for n, value in enumerate(values) if n not in both)
        for n in both:
            values[n] = alone
    return seconds, traffic


def run(rounds: int, settings: Settings, *, clients: int | None = None) -> Run:
    """Simulate with these settings over those of meadow.toml."""
    with tempfile.TemporaryDirectory() as folder:
        summary = simulate(
            APP,
            overrides=[
                f"{key}={value}" for key, value in {"run.rounds": rounds, **settings}.items()
            ],
            out=Path(folder),
            clients=clients,
        )
        if summary["status"] != "finished":
            raise SystemExit(f"{settings}: {summary['cause']}")
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
        model = load_file(Path(folder) / "model.safetensors")
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    seconds, traffic = costs_of(rows, asynchronous="rounds.kind" in settings)
    places = [place for place, row in enumerate(rows) if row["server"]]
    trained = [row for row in rows if not row["server"]]  # others count failures to evaluate too
    counted = sum(row["clients"] for row in trained)
    return Run(
        rounds=tuple(place + 1 for place in places),
        accuracies=tuple(rows[place]["server"]["accuracy"] for place in places),
        hours=tuple((np.cumsum(seconds)[places] / 3600).tolist()),
        gigabytes=tuple((np.cumsum(traffic)[places] / 1e9).tolist()),
        answered=counted / (counted + sum(row["failures"] for row in trained)),
        late_accuracy=_late_accuracy(model),
    )


def _late_accuracy(model: dict[str, torch.Tensor]) -> float:
    from task import LATE_DIGITS, build_model, images

    module = build_model()
    module.load_state_dict(model)
    inputs, targets = images(holdout=True)
    late = torch.isin(targets, torch.tensor(LATE_DIGITS))
    with torch.no_grad():
        return float((module(inputs[late]).argmax(1) == targets[late]).float().mean())


def table_of(title: str, rows: Sequence[Row], *, target: float) -> Table:
    """Return a line a row: the median of its runs, and the least and the most rounds."""
    table = Table(title=title, title_justify="left")
    for heading in (
        *("", f"rounds to {target:g}", "virtual hours", "GB", "answered", "accuracy", "of 8 and 9"),
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        rounds = row.at(target, lambda each: each.rounds)
        reached = ["not reached", "-", "-"]
        if rounds:
            apart = f" ({min(rounds)} to {max(rounds)})" if min(rounds) < max(rounds) else ""
            lacking = len(row.runs) - len(rounds)
            note = f", {lacking} of {len(row.runs)} never" if lacking else ""
            hours = median(row.at(target, lambda each: each.hours))
            gigabytes = median(row.at(target, lambda each: each.gigabytes))
            reached = [f"{median(rounds):g}{apart}{note}", f"{hours:.2f}", f"{gigabytes:.3f}"]
        answered = median(each.answered for each in row.runs)
        ends = [median(each.accuracies[-1] for each in row.runs)]
        ends.append(median(each.late_accuracy for each in row.runs))
        table.add_row(row.name, *reached, f"{answered:.2f}", *(f"{end:.3f}" for end in ends))
    return table


def plan(*, quick: bool) -> Iterator[tuple[str, str, int, Settings]]:
    """Yield the title, the name, the rounds and the settings of each row."""
    for cohort, rounds in COHORTS.items():
        if not (quick and cohort == LARGEST):
            yield "cohort, a deadline of 60 s", f"{cohort:,}", rounds, {"run.cohort": cohort}
    for deadline_s in DEADLINES_S[:: 6 if quick else 1]:
        title = f"deadline, cohorts of {CONCURRENCY}"
        settings: Settings = {"run.cohort": CONCURRENCY, "run.deadline_s": deadline_s}
        yield title, f"{deadline_s:g} s", 60, settings
    title = f"FedBuff's buffer, {CONCURRENCY} devices at once, plain SGD"
    for size, rounds in BUFFERS.items():
        settings = {"rounds.kind": "fedbuff", "rounds.concurrency": CONCURRENCY, **PLAIN}
        yield title, f"{size}", rounds, {**settings, "rounds.buffer_size": size}
    yield title, "synchronous", 60, {"run.cohort": CONCURRENCY, **PLAIN}


def main() -> None:
    """Simulate, print the tables and draw the picture."""
    import picture
    import tree

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("study.png"), help="the picture")
    parser.add_argument("--target", type=float, default=TARGET, help="the accuracy to reach")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each row")
    parser.add_argument("--quick", action="store_true", help="20,000 devices, 5 rounds: a trial")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # the bits of a model depend on it
    console = Console(width=120)
    groups: dict[str, list[Row]] = {}
    for title, name, rounds, settings in track(
        list(plan(quick=asked.quick)), "simulating", console=console
    ):
        once = asked.quick or settings.get("run.cohort") == LARGEST
        runs = [
            run(
                QUICK_ROUNDS if asked.quick else rounds,
                {**settings, "run.seed": seed},
                clients=QUICK_CLIENTS if asked.quick else None,
            )
            for seed in range(1, 2 if once else asked.seeds + 1)
        ]
        groups.setdefault(title, []).append(Row(name=name, runs=tuple(runs)))
    for title, rows in groups.items():
        console.print(table_of(title, rows, target=asked.target))
    console.print(tree.table_of(tree.EXAMPLES))
    picture.draw(*groups.values(), path=asked.out, target=asked.target)
    console.print(f"The picture is {asked.out}.", soft_wrap=True)


if __name__ == "__main__":
    main()
