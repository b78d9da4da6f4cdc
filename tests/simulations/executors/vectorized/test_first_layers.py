"""The layer that keeps no weight per client: its clients' deltas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from meadow.simulations.executors.vectorized.cohort_data import layout_of
from meadow.simulations.executors.vectorized.first_layers import FirstOnce
from meadow.simulations.executors.vectorized.linear_descent import GradientSum, LinearDescent

DESCENTS = {
    "plain": LinearDescent(rate=0.1),
    "momentum": LinearDescent(rate=0.1, momentum=0.9),
    "all": LinearDescent(rate=0.1, momentum=0.5, decay=0.03, proximal=0.2),
}


@pytest.mark.parametrize("descent", DESCENTS.values(), ids=DESCENTS)
def test_params_are_a_combination_of_gradients(descent: LinearDescent) -> None:
    """As the optimizer makes them, step after step."""
    torch.manual_seed(0)
    start, gradients = torch.randn(5, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    params, velocity, made = start.clone(), torch.zeros_like(start), GradientSum()
    for number, gradient in enumerate(gradients, 1):
        pulled = gradient + descent.decay * params + descent.proximal * (params - start)
        velocity = descent.momentum * velocity + pulled
        params = params - descent.rate * velocity
        made = made.after(descent)
        terms = torch.tensor(made.terms, dtype=torch.float64)
        torch.testing.assert_close(made.start * start + terms @ gradients[:number], params)


@pytest.mark.parametrize("descent", DESCENTS.values(), ids=DESCENTS)
@pytest.mark.parametrize("counts", [(20, 20, 20), (20, 14, 3)], ids=["alike", "unequal"])
def test_the_sum_is_that_of_the_changes(counts: tuple[int, ...], descent: LinearDescent) -> None:
    """Which exist only where somebody asks for each client's."""
    shape = (64, 32)
    torch.manual_seed(2)
    layer = FirstOnce(torch.nn.Linear(*shape))
    layout = layout_of(np.array(counts), batch_size=10, epochs=1, device=torch.device("cpu"))
    layer.begin(len(counts), descent)
    samples = torch.randn(len(layout.in_order), shape[0])
    for rows, width in zip(layout.in_steps(samples), layout.widths, strict=True):
        seen = rows.view(-1, width, shape[0])
        layer.active = len(seen)
        layer.step(seen, torch.randn(*seen.shape[:2], shape[1]), False)
    for low, high in ((0, 2), (2, 3)):
        weights, biases = layer.weight_deltas(low, high), layer.bias_deltas()[low:high]
        for row, client in enumerate(range(low, high)):
            alone = layer.weight_delta([client], torch.ones(1))
            torch.testing.assert_close(weights[row], alone)
            torch.testing.assert_close(weights[row], layer.weight_of(client) - layer.before)
            torch.testing.assert_close(biases[row], layer.bias_delta([client], torch.ones(1)))


def test_a_layer_that_the_loss_does_not_see_does_not_change() -> None:
    """It is never asked for a step."""
    layer = FirstOnce(torch.nn.Linear(64, 32))
    layout = layout_of(np.array([20, 20, 20]), batch_size=10, epochs=1, device=torch.device("cpu"))
    layer.begin(3, DESCENTS["plain"])
    samples = torch.randn(60, 64)
    for rows in layout.in_steps(samples):
        layer.outputs(rows.view(3, 10, 64))
    assert not layer.weight_delta(None, torch.ones(3)).any()
    assert not layer.weight_deltas(0, 3).any()
    assert not layer.bias_delta(None, torch.ones(3)).any()
    assert not layer.bias_deltas().any()
    assert torch.equal(layer.weight_of(1), layer.before)
    assert torch.equal(layer.bias_of(1), layer.layer.bias)


def test_a_client_whose_numbers_are_not_finite_spoils_nobody_elses_change() -> None:
    """Neither its samples nor its errors are in the sum of the others."""
    torch.manual_seed(2)
    layer = FirstOnce(torch.nn.Linear(6, 3))
    layer.begin(3, DESCENTS["plain"])
    for active in (3, 2):
        samples, errors = torch.randn(active, 4, 6), torch.randn(active, 4, 3)
        samples[1, 0, 0] = errors[1, 0, 0] = torch.nan
        layer.active = active
        layer.step(samples, errors, False)
    weights = torch.tensor([2.0, 3.0])
    expected = sum(w * (layer.weight_of(row) - layer.before) for w, row in ((2, 0), (3, 2)))
    torch.testing.assert_close(layer.weight_delta([0, 2], weights), expected)
    expected = sum(w * (layer.bias_of(row) - layer.bias_before) for w, row in ((2, 0), (3, 2)))
    torch.testing.assert_close(layer.bias_delta([0, 2], weights), expected)


def test_a_step_is_as_wide_as_its_largest_batch() -> None:
    """Nothing is computed for rows that are padding in every client's batch."""
    layout = layout_of(np.array([18, 17, 4]), batch_size=10, epochs=2, device=torch.device("cpu"))
    assert layout.active == [3, 3, 2, 2]
    assert layout.widths == [10, 8, 10, 8]
    assert layout.step_weights[1].count_nonzero(1).tolist() == [8, 7, 4]
    assert layout.step_weights[1].sum(1).tolist() == pytest.approx([1, 1, 1])
    assert len(layout.in_order) == 3 * 10 + 3 * 8 + 2 * 10 + 2 * 8
