"""A classifier's loss and metric for a `Task`: one value per example."""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["accuracy", "cross_entropy"]

VECTOR = 16
"""Numbers that a core computes with at once: torch takes rows of fewer classes one number at a
time, which costs 150 ns a row with ten classes, and 20 with sixteen."""
ROWS_MIN = 256
"""Below, it takes longer to add classes than they save."""


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return each example's cross entropy: -log softmax(outputs)[target].

    Shapes: `outputs` (batch, classes, ...) are logits, `targets` (batch, ...) the classes' numbers,
        or probabilities in the shape of `outputs`; the result is (batch,), the mean over further
        dimensions.
    Source: as `torch.nn.functional.cross_entropy` with reduction="none", within float rounding.
    """
    if outputs.ndim == 2 and outputs.shape[0] >= ROWS_MIN:
        missing = VECTOR - outputs.shape[1]
        if missing > 0 and targets.ndim == 1 and outputs.device.type == "cpu":
            # classes that are never an example's
            outputs = functional.pad(outputs, (0, missing), value=-torch.inf)
    return _by_example(functional.cross_entropy(outputs, targets, reduction="none"))


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return 1 for each example whose largest output is its target's, and 0 for the others.

    Shapes: `outputs` (batch, classes, ...), `targets` (batch, ...); the result is (batch,), the
        mean over further dimensions.
    """
    return _by_example((outputs.argmax(dim=1) == targets).float())


def _by_example(values: torch.Tensor) -> torch.Tensor:
    return values if values.ndim < 2 else values.flatten(1).mean(1)
