"""The batch size against time: SGD on one machine and FedAvg with 50 clients, the same app.

Both are runs of the app in this folder: one client with all 4,000 images, or 50 clients with 80
each. A round is an epoch in either: every image is seen once. A size is simulated twice with the
same seed, which gives the same models: once without any evaluation, for the time of an epoch,
and once with an evaluation of every round on 1,000 images that no client has, for the accuracy.
Time is the processor time of this process, whose torch has one thread: on an idle machine it is
what a clock would show, and on a busy one it leaves out the waiting. An epoch's is that of the
fastest round, with its aggregation and checkpoint; the time to the target is that times the
epochs. One thread computes the steps of all 50 clients: that is a simulation's cost, not a
federation's, where clients train side by side.

The learning rate grows with the batch size up to a bound (the linear rule of Goyal et al. 2017,
arXiv 1706.02677). FedAvg's begins four times as high, found by trial: the mean of 50 clients'
steps has less noise than any of them. A client cannot have a batch larger than its 80 images.

    python examples/batch_size/study.py [--out study.png] [--target 0.97] [--quick]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from picture import draw
from rich.console import Console
from rich.progress import track
from rich.table import Table

from meadow.simulations.run import simulate

__all__ = ["Curve", "Side", "learning_rate", "main", "table_of"]

APP = Path(__file__).resolve().parent
IMAGES = 4_000
SIZES = (8, 16, 32, 64, 128, 256, 512)
QUICK_SIZES = (64, 512)
RATE_MAX = 0.4
TARGET = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two that are compared.

    Attributes:
        rate_of_8: the learning rate for batches of 8.
        epochs: how long a run is.
        timed_epochs: how long the run is whose rounds are timed.
    """

    name: str
    clients: int
    executor: str
    rate_of_8: float
    epochs: int
    timed_epochs: int = 5

    @property
    def batch_size_max(self) -> int:
        """The images of a client."""
        return IMAGES // self.clients


SGD = Side(name="SGD, one machine", clients=1, executor="sequential", rate_of_8=0.05, epochs=25)
FEDAVG = Side(
    name="FedAvg, 50 clients", clients=50, executor="vectorized", rate_of_8=0.2, epochs=80
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What was measured of a batch size.

    Attributes:
        batch_size: examples in a step, never more than a client has.
        epoch_s: seconds of an epoch, evaluation not included.
        accuracies: after each epoch, on images that no client has.
    """

    batch_size: int
    epoch_s: float
    accuracies: tuple[float, ...]

    @property
    def best(self) -> float:
        """The highest accuracy of any epoch."""
        return max(self.accuracies)

    def epochs_to(self, target: float) -> int | None:
        """Return the first epoch with this accuracy; None if there is none."""
        return next((n for n, value in enumerate(self.accuracies, 1) if value >= target), None)

    def seconds_to(self, target: float) -> float | None:
        """Return the time of the epochs up to this accuracy; None if it is not reached."""
        epochs = self.epochs_to(target)
        return None if epochs is None else epochs * self.epoch_s


def learning_rate(side: Side, batch_size: int) -> float:
    """Return the rate in proportion to the batch size, up to `RATE_MAX`."""
    return min(side.rate_of_8 * batch_size / 8, RATE_MAX)


def measure(side: Side, batch_size: int) -> Curve:
    """Simulate a batch size twice: without evaluation for its time, with it for its accuracy."""
    marks_s: dict[str, list[float]] = {"round_started": [], "round_committed": []}

    def mark(kind: str, detail: Mapping[str, Any]) -> None:
        if kind in marks_s:
            marks_s[kind].append(time.process_time())

    _rows(side, batch_size, epochs=side.timed_epochs, evaluate_every=0, on_event=mark)
    rows = _rows(side, batch_size, epochs=side.epochs, evaluate_every=1)
    starts_s, ends_s = marks_s.values()
    return Curve(
        batch_size=batch_size,
        epoch_s=min(end - start for start, end in zip(starts_s, ends_s, strict=True)),
        accuracies=tuple(row["server"]["accuracy"] for row in rows),
    )


def _rows(
    side: Side,
    batch_size: int,
    *,
    epochs: int,
    evaluate_every: int,
    on_event: Callable[[str, Mapping[str, Any]], None] = lambda kind, detail: None,
) -> list[dict[str, Any]]:
    settings = {
        "run.rounds": epochs,
        "evaluation.every": evaluate_every,
        "training.batch_size": batch_size,
        "training.learning_rate": learning_rate(side, batch_size),
    }
    with tempfile.TemporaryDirectory() as folder:
        summary = simulate(
            APP,
            overrides=[f"{key}={value}" for key, value in settings.items()],
            out=Path(folder),
            clients=side.clients,
            executor=side.executor,
            on_event=on_event,
        )
        if summary["status"] != "finished":
            raise SystemExit(f"{side.name}, batch size {batch_size}: {summary['cause']}")
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def table_of(side: Side, curves: list[Curve], *, target: float) -> Table:
    """Return a line a batch size; the best of a column is in bold."""
    table = Table(title=f"{side.name}, {side.epochs} epochs", title_justify="left")
    headings = ("batch size", "rate", "s an epoch", f"epochs to {target:g}", f"s to {target:g}")
    for heading in (*headings, "best"):
        table.add_column(heading, justify="right", no_wrap=True)
    reached = [seconds for curve in curves if (seconds := curve.seconds_to(target)) is not None]
    for curve in curves:
        epochs, seconds = curve.epochs_to(target), curve.seconds_to(target)
        everything = curve.batch_size == side.batch_size_max
        cells = [
            f"all {curve.batch_size}" if everything else f"{curve.batch_size}",
            f"{learning_rate(side, curve.batch_size):g}",
            _bold(f"{curve.epoch_s:.2f}", curve.epoch_s == min(c.epoch_s for c in curves)),
            "not reached" if epochs is None else f"{epochs}",
            "-" if seconds is None else _bold(f"{seconds:.1f}", seconds == min(reached)),
            _bold(f"{curve.best:.3f}", curve.best == max(c.best for c in curves)),
        ]
        table.add_row(*cells)
    return table


def _bold(text: str, is_best: bool) -> str:
    return f"[bold]{text}[/bold]" if is_best else text


def main() -> None:
    """Measure, print the tables and draw the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("study.png"), help="the picture")
    parser.add_argument("--target", type=float, default=TARGET, help="the accuracy to reach")
    parser.add_argument("--quick", action="store_true", help="two sizes, two epochs: a trial")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # the bits of a model depend on it
    console = Console()
    sides = [_shortened(side) if asked.quick else side for side in (SGD, FEDAVG)]
    sizes = QUICK_SIZES if asked.quick else SIZES
    plan = [
        (side, size)
        for side in sides
        for size in sorted({min(size, side.batch_size_max) for size in sizes})
    ]
    curves: dict[str, list[Curve]] = {side.name: [] for side in sides}
    for side, size in track(plan, "simulating", console=console):
        curves[side.name].append(measure(side, size))
    for side in sides:
        console.print(table_of(side, curves[side.name], target=asked.target))
    draw(curves, asked.out, target=asked.target)
    console.print(f"The picture is {asked.out}.", soft_wrap=True)


def _shortened(side: Side) -> Side:
    return replace(side, epochs=2, timed_epochs=1)


if __name__ == "__main__":
    main()
