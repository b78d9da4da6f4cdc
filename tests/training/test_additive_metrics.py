"""Metrics that are no means of examples: over clients they are those of all examples together."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

import meadow
from meadow.errors import ConfigError, DataError, RunError
from meadow.strategies.algorithms.metrics import MetricMeans, computed
from meadow.training.additive_metrics import additive_metrics_of
from meadow.training.evaluation import ExampleMeans


def pooled(metric: Any, outputs: torch.Tensor, targets: torch.Tensor, parts: list[slice]) -> Any:
    """Return the metric as a server computes it of what clients with these examples report."""
    task = meadow.Task(client_data=lambda site: None, metrics={"m": metric})  # type: ignore[arg-type,return-value]
    means = MetricMeans()
    for part in parts:
        own = ExampleMeans(task)
        for batch in torch.arange(len(outputs))[part].split(7):
            own.add(outputs[batch], targets[batch], targets[batch].float())
        means.add(own.means(), weight=own.examples)
    return computed(means.means(), additive_metrics_of(task))["m"]


def examples(classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, list[slice]]:
    """Return logits, targets that follow them a little, and clients that are sorted by class: most
    have one class alone."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.sort(torch.randint(0, classes, (600,), generator=generator)).values
    outputs = torch.randn(600, classes, generator=generator)
    outputs[torch.arange(600), targets] += 1
    bounds = [0, 90, 95, 220, 230, 400, 599, 600]
    return outputs, targets, [slice(a, b) for a, b in pairwise(bounds)]


def test_auroc_is_that_of_all_examples() -> None:
    """Within half the chance that two of different classes share a bin; the mean of the clients' own
    values is far from it, where they have one at all."""
    outputs, targets, parts = examples(2)
    exact = roc_auc_score(targets, outputs.softmax(1)[:, 1])
    bins = (outputs.softmax(1)[:, 1] * 64).long().clamp(max=63)
    shared = sum(
        float((bins[targets == 0] == b).float().mean() * (bins[targets == 1] == b).float().mean())
        for b in range(64)
    )
    found = pooled(meadow.auroc(), outputs, targets, parts)
    assert abs(found - exact) <= shared / 2 + 1e-12 and shared / 2 < 0.02
    fine = pooled(meadow.auroc(bins=256), outputs, targets, parts)
    assert abs(fine - exact) < 3e-3
    one = outputs[:, 1] - outputs[:, 0]
    for shape in (one, one[:, None]):
        assert pooled(meadow.auroc(), shape, targets, parts) == pytest.approx(found, abs=1e-9)


@pytest.mark.parametrize(("classes", "average"), [(2, "binary"), (2, "macro"), (5, "macro")])
def test_f1_is_that_of_all_examples(classes: int, average: Any) -> None:
    """scikit-learn's of the pooled examples."""
    outputs, targets, parts = examples(classes)
    exact = f1_score(targets, outputs.argmax(1), average=average)
    found = pooled(meadow.f1(classes=classes, average=average), outputs, targets, parts)
    assert found == pytest.approx(exact, abs=1e-12)


def test_f1_leaves_out_classes_that_nobody_has() -> None:
    """As scikit-learn does: neither target nor predicted; a class that is only predicted counts 0."""
    targets = torch.tensor([0, 0, 1, 1])
    outputs = torch.eye(4)[[0, 2, 1, 1]]
    exact = f1_score(targets, outputs.argmax(1), average="macro")
    found = pooled(meadow.f1(classes=4), outputs, targets, [slice(0, 2), slice(2, 4)])
    assert found == pytest.approx(exact, abs=1e-12)


def test_the_calibration_error_is_that_of_all_examples() -> None:
    """By its definition, on the pooled examples."""
    outputs, targets, parts = examples(3)
    confidence, predicted = outputs.double().softmax(1).max(1)
    exact, place = 0.0, (confidence * 15).long().clamp(max=14)
    for b in range(15):
        own = place == b
        if own.any():
            gap = (predicted == targets)[own].double().mean() - confidence[own].mean()
            exact += float(own.double().mean() * gap.abs())
    found = pooled(meadow.calibration_error(), outputs, targets, parts)
    assert found == pytest.approx(exact, abs=1e-7)


def test_what_has_no_value_is_none() -> None:
    """One class alone has no curve; a mean that is missing or not finite leaves no value."""
    outputs, targets, _ = examples(2)
    ones = targets == 1
    assert pooled(meadow.auroc(), outputs[ones], targets[ones], [slice(None)]) is None
    additive = {"m": (2, lambda means: means[0] / means[1])}
    assert computed({"m[0]": 1.0, "m[1]": None, "loss": 2.0}, additive) == {"loss": 2.0, "m": None}
    assert computed({"m[0]": 1.0}, additive) == {"m": None}
    assert computed({"loss": 2.0}, additive) == {"loss": 2.0}
    with pytest.raises(RunError, match="metric 'm' cannot be computed: ZeroDivisionError"):
        computed({"m[0]": 1.0, "m[1]": 0.0}, additive)


class Odd(meadow.AdditiveMetric):
    """A metric of one's own, with a size that it does not keep to."""

    size = 2

    def statistics(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(targets), 3)

    def value(self, means: Any) -> float:
        return 0.0


def test_mistakes_are_named() -> None:
    """Shapes, classes and sizes."""
    outputs, targets, parts = examples(3)
    for metric, says in (
        (meadow.auroc(), "of two classes, got outputs of 3"),
        (meadow.f1(classes=5), "of 5 classes, got outputs of 3"),
        (Odd(), r"2 values per example, shape \(7, 2\), got \(7, 3\)"),
    ):
        with pytest.raises(DataError, match=says):
            pooled(metric, outputs, targets, parts)
    with pytest.raises(DataError, match="a target outside them"):
        pooled(meadow.f1(classes=3), outputs, targets + 1, parts)
    with pytest.raises(DataError, match=r"needs outputs \(batch,\) or \(batch, classes\)"):
        pooled(meadow.f1(classes=3), outputs[:, :, None], targets, parts)
    for wrong in ({"bins": 1}, {"bins": 257}):
        with pytest.raises(ConfigError, match="bins"):
            meadow.auroc(**wrong)
    with pytest.raises(ConfigError, match="classes"):
        meadow.f1(classes=3, average="binary")
    for size in (0, 513, 2.0, None):
        odd = Odd()
        odd.size = size  # type: ignore[assignment]
        with pytest.raises(ConfigError, match="size must be a whole number from 1 to 512"):
            meadow.Task(client_data=lambda site: None, metrics={"odd": odd})  # type: ignore[arg-type,return-value]


def test_weights_of_clients_are_their_examples() -> None:
    """However the same examples are divided, the value is the same."""
    outputs, targets, parts = examples(2, seed=3)
    metric = meadow.auroc()
    found = [
        pooled(metric, outputs, targets, divided)
        for divided in (parts, [slice(None)], [slice(0, 1), slice(1, 600)])
    ]
    assert np.ptp(found) < 1e-12
