"""A classifier's loss and metric: torch's own, one value an example."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import meadow


def gradient(loss: object, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(0.5, 2, len(outputs))
    assert callable(loss)
    (made,) = torch.autograd.grad(torch.dot(loss(outputs, targets).float(), weights), outputs)
    return made


def reference(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("rows", [1, 10, 300])
@pytest.mark.parametrize("classes", [1, 2, 10, 16, 40])
def test_cross_entropy_and_its_gradient_are_torchs(rows: int, classes: int) -> None:
    torch.manual_seed(rows + classes)
    outputs = (5 * torch.randn(rows, classes)).requires_grad_()
    targets = torch.randint(0, classes, (rows,))
    torch.testing.assert_close(
        meadow.cross_entropy(outputs, targets), reference(outputs, targets), rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(
        gradient(meadow.cross_entropy, outputs, targets),
        gradient(reference, outputs, targets),
        rtol=1e-5,
        atol=1e-6,
    )


def test_rows_without_a_loss_have_none() -> None:
    """An output that is no number is the loss of its own example alone."""
    outputs = torch.randn(300, 3)
    outputs[7] = torch.nan
    losses = meadow.cross_entropy(outputs, torch.zeros(300, dtype=torch.long))
    assert losses.isnan().nonzero().flatten().tolist() == [7]


def test_further_dimensions_are_averaged() -> None:
    outputs, targets = torch.randn(4, 3, 5, 2), torch.randint(0, 3, (4, 5, 2))
    losses = meadow.cross_entropy(outputs, targets)
    torch.testing.assert_close(losses, reference(outputs, targets).mean((1, 2)))
    found = meadow.accuracy(outputs, targets)
    torch.testing.assert_close(found, (outputs.argmax(1) == targets).float().mean((1, 2)))


def test_targets_may_be_probabilities() -> None:
    outputs, targets = torch.randn(300, 3), torch.rand(300, 3).softmax(1)
    torch.testing.assert_close(
        meadow.cross_entropy(outputs, targets), reference(outputs, targets), rtol=1e-5, atol=1e-6
    )


def test_cross_entropy_can_be_vectorized() -> None:
    """Under torch.func, a leading axis of clients is as many calls."""
    outputs, targets = torch.randn(3, 300, 10), torch.randint(0, 10, (3, 300))

    def mean(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return meadow.cross_entropy(logits, wanted).mean()

    together = torch.vmap(torch.func.grad(mean))(outputs, targets)
    alone = [torch.func.grad(mean)(*each) for each in zip(outputs, targets, strict=True)]
    torch.testing.assert_close(together, torch.stack(alone))
