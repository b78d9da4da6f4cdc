"""What the trace of one client's step counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from meadow.simulations.executors.vectorized.step_trace import trace_step

BATCH = 3


@pytest.mark.parametrize(
    ("module", "shape", "forward"),
    [
        (nn.Linear(7, 5), (7,), 7 * 5),
        (nn.Conv2d(2, 4, 3, padding=1), (2, 6, 6), 2 * 4 * 9 * 36),
        (nn.Conv1d(2, 4, 3), (2, 8), 2 * 4 * 3 * 6),
        (nn.Embedding(5, 4), None, 0),
    ],
    ids=["linear", "conv2d", "conv1d", "embedding"],
)
def test_flops_are_those_of_products_and_convolutions(
    module: nn.Module, shape: tuple[int, ...] | None, forward: int
) -> None:
    """Of the first layer: its products, and as many for the gradient of its weight; two each."""
    inputs = torch.arange(BATCH) if shape is None else torch.randn(BATCH, *shape)
    trained = {name: param.detach() for name, param in module.named_parameters()}
    trace = trace_step(
        module, trained, {}, inputs, lambda outputs: outputs.square().flatten(1).sum(1)
    )
    assert trace.flops == 2 * 2 * forward * BATCH


def test_an_inner_layer_also_has_its_inputs_gradient() -> None:
    module = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 2))
    trained = {name: param.detach() for name, param in module.named_parameters()}
    trace = trace_step(module, trained, {}, torch.randn(BATCH, 7), lambda outputs: outputs.sum(1))
    assert trace.flops == 2 * BATCH * (2 * 7 * 5 + 3 * 5 * 2)


def test_what_is_computed_anew_in_the_backward_pass_changes_nothing() -> None:
    """Activation checkpoints call the module again: its own buffers are not theirs to change."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(7, 7), nn.BatchNorm1d(7), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return made

    module = Block()
    trained = {name: param.detach() for name, param in module.named_parameters()}
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    others = dict(module.named_buffers())
    trace_step(module, trained, others, torch.randn(BATCH, 7), lambda outputs: outputs.sum(1))
    assert all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())
