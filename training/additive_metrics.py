"""Metrics of a classifier that are no means of examples: AUROC, F1 and the calibration error.

Each is computed from means over examples, so that the value of all clients together is that of their
pooled examples, also where each client has one class alone.

Sources: Hanley, McNeil, "The meaning and use of the area under a receiver operating characteristic
(ROC) curve" (1982): `auroc`; Guo, Pleiss, Sun, Weinberger, "On calibration of modern neural
networks" (2017), equation 3: `calibration_error`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch.nn import functional

from ..errors import DataError
from ..strategies.algorithms.bounds import require_choice, require_whole
from ..strategies.algorithms.metrics import MetricOfMeans, statistics_of
from ..task import STATISTICS_MAX, AdditiveMetric, Task

__all__ = [
    "AUROC",
    "F1",
    "CalibrationError",
    "additive_metrics_of",
    "auroc",
    "calibration_error",
    "f1",
    "value_names",
]

Average = Literal["macro", "binary"]


def auroc(*, bins: int = 64) -> AUROC:
    """Return the area under the ROC curve of a binary classifier, from a histogram of its
    probabilities with equal bins.

    Shapes: outputs are logits, (batch,) or (batch, 1), or (batch, 2) of both classes; targets 0 and 1.
    Guarantees: within half the chance that a positive and a negative example are in one bin.
    Edge cases: no value while all examples are of one class.
    Raises:
        ConfigError: `bins` is not from 2 to 256.
    """
    return AUROC(require_whole("bins", bins, at_least=2, at_most=STATISTICS_MAX // 2))


def f1(*, classes: int = 2, average: Average = "macro") -> F1:
    """Return the F1 score: "macro" is the mean over the classes that targets or predictions have, and
    "binary" that of class 1.

    Shapes: outputs are logits, (batch, classes), or (batch,) or (batch, 1) of two classes.
    Guarantees: that of scikit-learn's `f1_score` on all examples, within rounding.
    Raises:
        ConfigError: `classes` is not from 2 to 170, or not 2 with "binary".
    """
    require_choice("average", average, ("macro", "binary"))
    most = 2 if average == "binary" else STATISTICS_MAX // 3
    return F1(require_whole("classes", classes, at_least=2, at_most=most), average)


def calibration_error(*, bins: int = 15) -> CalibrationError:
    """Return the expected calibration error: how far confidence is from accuracy, over equal bins of
    confidence, the probability of the predicted class.

    Shapes: outputs are logits, (batch, classes), or (batch,) or (batch, 1) of two classes.
    Raises:
        ConfigError: `bins` is not from 1 to 170.
    """
    return CalibrationError(require_whole("bins", bins, at_least=1, at_most=STATISTICS_MAX // 3))


def value_names(task: Task) -> tuple[str, ...]:
    """Return the numbers that are averaged over examples: "loss", and those of the metrics; an additive
    metric has several, "auroc[0]", "auroc[1]" ..."""
    names = ["loss"]
    for name, metric in task.metrics.items():
        if isinstance(metric, AdditiveMetric):
            names += statistics_of(name, metric.size)
        else:
            names.append(name)
    return tuple(names)


def additive_metrics_of(task: Task) -> dict[str, MetricOfMeans]:
    """Return the number of means of each additive metric, and the function of them; also of the metrics
    of clients' own params, "personal-auroc"."""
    found = {n: m for n, m in task.metrics.items() if isinstance(m, AdditiveMetric)}
    return {
        f"{prefix}{name}": (metric.size, metric.value)
        for name, metric in found.items()
        for prefix in ("", "personal-")
    }


class AUROC(AdditiveMetric):
    """See `auroc`. An example's numbers are 1 at its class and bin: (negatives, positives)."""

    def __init__(self, bins: int) -> None:
        self._bins, self.size = bins, 2 * bins

    def statistics(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = _logits(outputs, targets, "auroc")
        if logits.shape[1] != 2:
            raise DataError(f"auroc is of two classes, got outputs of {logits.shape[1]}")
        scores = functional.softmax(logits.double(), dim=1)[:, 1]
        places = _bins_of(scores, self._bins) + self._bins * (targets == 1).long()
        return functional.one_hot(places, self.size).float()

    def value(self, means: Sequence[float]) -> float:
        negatives, positives = np.array(means, np.float64).reshape(2, self._bins)
        pairs = negatives.sum() * positives.sum()
        if not pairs > 0:
            return math.nan
        below = np.cumsum(negatives) - negatives / 2
        return float((positives * below).sum() / pairs)


class F1(AdditiveMetric):
    """See `f1`. An example's numbers are 1 at its class if it is predicted, at the predicted class, and
    at its own: (hits, predictions, targets)."""

    def __init__(self, classes: int, average: Average) -> None:
        self._classes, self._average, self.size = classes, average, 3 * classes

    def statistics(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = _logits(outputs, targets, "f1")
        if logits.shape[1] != self._classes:
            raise DataError(f"f1 is of {self._classes} classes, got outputs of {logits.shape[1]}")
        asked = targets.long()
        if len(asked) and not 0 <= int(asked.min()) <= int(asked.max()) < self._classes:
            raise DataError(f"f1 is of {self._classes} classes, got a target outside them")
        predicted = functional.one_hot(logits.argmax(dim=1), self._classes)
        own = functional.one_hot(asked, self._classes)
        return torch.cat([predicted * own, predicted, own], dim=1).float()

    def value(self, means: Sequence[float]) -> float:
        hits, predicted, own = np.array(means, np.float64).reshape(3, self._classes)
        either = predicted + own
        scores = 2 * hits / np.where(either > 0, either, 1.0)
        chosen = either > 0 if self._average == "macro" else np.arange(self._classes) == 1
        return float(scores[chosen].mean()) if chosen.any() else math.nan


class CalibrationError(AdditiveMetric):
    """See `calibration_error`. An example's numbers are whether it is right, and its confidence, at its
    bin: (right, confidence)."""

    def __init__(self, bins: int) -> None:
        self._bins, self.size = bins, 2 * bins

    def statistics(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        chances = functional.softmax(_logits(outputs, targets, "calibration_error").double(), dim=1)
        confidence, predicted = chances.max(dim=1)
        places = functional.one_hot(_bins_of(confidence, self._bins), self._bins)
        right = (predicted == targets.long()).double()
        return torch.cat([places * right[:, None], places * confidence[:, None]], dim=1).float()

    def value(self, means: Sequence[float]) -> float:
        right, confidence = np.array(means, np.float64).reshape(2, self._bins)
        return float(np.abs(right - confidence).sum())


def _logits(outputs: torch.Tensor, targets: torch.Tensor, name: str) -> torch.Tensor:
    """Return the logits of each class, (batch, classes); one output is the second of two classes."""
    if outputs.ndim == 1:
        outputs = outputs[:, None]
    if outputs.ndim != 2 or targets.shape != outputs.shape[:1]:
        raise DataError(
            f"{name} needs outputs (batch,) or (batch, classes) and targets (batch,), got "
            f"{tuple(outputs.shape)} and {tuple(targets.shape)}"
        )
    if outputs.shape[1] == 1:
        return torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    return outputs


def _bins_of(values: torch.Tensor, bins: int) -> torch.Tensor:
    """Return which of so many equal bins of [0, 1] each value is in."""
    return (values.nan_to_num(0.0) * bins).long().clamp(0, bins - 1)
