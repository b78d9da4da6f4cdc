"""Convolutions as matrix products, and LSTM step by step: the same but for rounding, also mapped and
differentiated."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional

from meadow.simulations.executors.vectorized.stacked_layers import (
    StackedLayers,
    product_of,
)
from meadow.training.functional import call_with

CLIENTS, BATCH = 3, 4

FIRST: list[dict[str, Any]] = [
    {"channels": 1, "kernel": 3},
    {"channels": 1, "kernel": 5, "padding": 2},
    {"channels": 3, "kernel": 3, "padding": (1, 0)},
    {"channels": 3, "kernel": (3, 2), "padding": [1]},
    {"channels": 2, "kernel": (1, 4), "bias": False},
    {"channels": 3, "kernel": 3, "dilation": 2, "padding": 2},
    {"channels": 1, "kernel": (3, 5), "dilation": (3, 1), "outputs": 1},
    {"channels": 1, "kernel": (9, 3)},
    {"channels": 8, "kernel": 1, "padding": 1},
]
"""Of images that need no gradient; one kernel is as high as the image."""
PIXELS: list[dict[str, Any]] = [
    {"channels": 1, "kernel": 1},
    {"channels": 40, "kernel": 1},
    {"channels": 8, "kernel": 1, "stride": 2},
    {"channels": 8, "kernel": 1, "stride": (1, 3), "bias": False, "dilation": 2},
]
"""Of single pixels, anywhere in a network."""
OTHERS: list[dict[str, Any]] = [
    {"channels": 1, "kernel": 3, "stride": 2},
    {"channels": 8, "kernel": 3, "padding": 1},
    {"channels": 4, "kernel": 3, "groups": 2},
    {"channels": 1, "kernel": 3, "padding": "same"},
    {"channels": 40, "kernel": 1, "padding": 1},
]


def tensors(
    *, channels: int, kernel: Any, bias: bool = True, outputs: int = 6, groups: int = 1, **_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Images, weights and biases of some clients."""
    draw = torch.Generator().manual_seed(channels)
    rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
    shape = CLIENTS, outputs, channels // groups, rows, columns
    images = torch.randn(CLIENTS, BATCH, channels, 9, 9, generator=draw)
    offsets = torch.randn(CLIENTS, outputs, generator=draw) if bias else None
    return images, torch.randn(shape, generator=draw), offsets


def options_of(case: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in case.items() if k in ("stride", "padding", "dilation", "groups")}


@pytest.mark.parametrize("case", [*FIRST, *PIXELS], ids=str)
def test_a_product_is_the_convolution(case: dict[str, Any]) -> None:
    images, weights, biases = tensors(**case)
    for image, weight, bias in zip(
        images, weights, [None] * 3 if biases is None else biases, strict=True
    ):
        made = product_of(image, weight, bias, **options_of(case))
        expected = torch.conv2d(image, weight, bias, **options_of(case))
        assert made is not None and made.is_contiguous()
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [*FIRST, *PIXELS, *OTHERS], ids=str)
@pytest.mark.parametrize("inner", [False, True], ids=["first", "inner"])
def test_clients_gradients_are_those_of_the_convolution(case: dict[str, Any], inner: bool) -> None:
    """With a weight a client, and with the images' gradient where there are layers before."""
    images, weights, biases = tensors(**case)
    biases = torch.zeros(CLIENTS, weights.shape[1]) if biases is None else biases

    def loss(
        weight: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, image: torch.Tensor
    ) -> torch.Tensor:
        image = image * scale if inner else image
        made = functional.conv2d(image, weight, bias, **options_of(case))
        return (made.square() * torch.arange(made.numel()).view(made.shape)).mean()

    arguments = weights, biases, torch.ones(CLIENTS), images
    stacked = vmap(grad(loss, argnums=(0, 1, 2)))
    expected = stacked(*arguments)
    with StackedLayers():
        found = stacked(*arguments)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_other_convolutions_are_torchs(case: dict[str, Any]) -> None:
    images, weights, _ = tensors(**case)
    assert product_of(images[0], weights[0], **options_of(case)) is None


def test_columns_of_what_needs_a_gradient_are_torchs() -> None:
    """What goes back through them takes longer than is saved."""
    images, weights, _ = tensors(channels=1, kernel=3)
    assert product_of(images[0].requires_grad_(), weights[0]) is None


@pytest.mark.parametrize(
    ("shape", "weight", "bias", "options"),
    [
        ((0, 1, 8, 8), (4, 1, 3, 3), (4,), {}),
        ((2, 1, 8, 8), (0, 1, 3, 3), (0,), {}),
        ((2, 1, 8, 8), (4, 1, 3, 3), (1,), {}),
        ((2, 1, 8, 8), (4, 1, 3, 3), (4,), {"padding": -1}),
        ((2, 1, 8, 8), (4, 1, 1, 1), (4,), {"stride": 0}),
        ((2, 1, 8, 8), (4, 1, 3, 3), (4,), {"dilation": 0}),
        ((2, 1, 0, 8), (4, 1, 1, 1), (4,), {}),
    ],
    ids=str,
)
def test_what_is_odd_is_torchs(shape: Any, weight: Any, bias: Any, options: dict[str, Any]) -> None:
    """Which refuses it or does not."""
    given = [torch.ones(each) for each in (shape, weight, bias)]
    assert product_of(*given, **options) is None


def test_lower_precision_is_torchs() -> None:
    images, weights, biases = tensors(channels=1, kernel=3)
    assert biases is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert product_of(images[0], weights[0], biases[0]) is None
    assert product_of(images[0], weights[0].double(), biases[0]) is None
    assert product_of(images[0], weights[0], biases[0].double()) is None


@pytest.mark.parametrize("shape", [(2, 1, 2, 2), (1, 8, 8), (2, 3, 8, 8)], ids=str)
def test_what_cannot_be_is_said_by_torch(shape: tuple[int, ...]) -> None:
    """Too small an image, another number of channels; or one image, which may be."""
    weight = torch.ones(4, 1, 3, 3)
    with StackedLayers():
        if len(shape) == 3:
            assert torch.conv2d(torch.ones(shape), weight).shape == (4, 6, 6)
        else:
            with pytest.raises(RuntimeError):
                torch.conv2d(torch.ones(shape), weight)


def test_layers_and_functions_are_found() -> None:
    """`nn.Conv2d` ends in the same function."""
    seen: list[bool] = []

    class Noting(StackedLayers):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func is torch.conv2d)
            return super().__torch_function__(func, types, args, kwargs)

    layer, image = nn.Conv2d(1, 4, 3), torch.ones(2, 1, 8, 8)
    with Noting():
        layer(image)
        functional.conv2d(image, layer.weight)
    assert sum(seen) == 2


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("proj_size", [0, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm_is_mapped(dropout: float, proj_size: int, bidirectional: bool) -> None:
    """torch warns of an operation that clients take one after the other; here they take none such."""
    torch.manual_seed(1)
    lstm = nn.LSTM(
        5, 4, 2, batch_first=True, dropout=dropout, proj_size=proj_size, bidirectional=bidirectional
    )
    params = {n: torch.randn(CLIENTS, *p.shape) / 4 for n, p in lstm.named_parameters()}
    batches = torch.randn(CLIENTS, BATCH, 6, 5)
    enabled = torch.backends.mkldnn.enabled

    def loss(params: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(2)  # every client draws the same
        outputs, _ = call_with(lstm, params, batch)
        total: torch.Tensor = outputs.square().sum()
        return total

    alone = [
        grad(loss)({n: p[row] for n, p in params.items()}, batches[row]) for row in range(CLIENTS)
    ]
    with StackedLayers(), warnings.catch_warnings():
        warnings.simplefilter("error")
        stacked = vmap(grad(loss), randomness="same")(params, batches)
    assert torch.backends.mkldnn.enabled == enabled
    for row, expected in enumerate(alone):
        for name, gradient in expected.items():
            torch.testing.assert_close(stacked[name][row], gradient, rtol=1e-4, atol=1e-5)
