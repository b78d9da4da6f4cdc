"""Dropout for many clients at once, with the masks that each would draw alone.

A client's masks come from a generator of its own, in the order and the shapes in which the
sequential trainer draws them: so both train with the same ones. To that end torch's dropout
functions are replaced while a step runs; nothing of torch can be told to draw by client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

__all__ = ["ClientDropout", "dropout_calls"]

Dropout = Callable[..., torch.Tensor]
_BY_FEATURE = ("dropout1d", "dropout2d", "dropout3d")


@contextmanager
def _replaced(replacement: Callable[[Dropout, bool], Dropout]) -> Iterator[None]:
    originals = {name: getattr(functional, name) for name in ("dropout", *_BY_FEATURE)}
    for name, original in originals.items():
        setattr(functional, name, replacement(original, name in _BY_FEATURE))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(functional, name, original)


@contextmanager
def dropout_calls() -> Iterator[list[float]]:
    """Note the rates with which dropout is applied meanwhile."""
    rates: list[float] = []

    def noting(original: Dropout, by_feature: bool) -> Dropout:
        def noted(
            input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
        ) -> torch.Tensor:
            if training and p:
                rates.append(p)
            return original(input, p, training, inplace)

        return noted

    with _replaced(noting):
        yield rates


class ClientDropout:
    """The generators of a cohort, and dropout that takes each client's masks from its own."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        """`seeds` are those of the clients' trainings, in the order of the client axis."""
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self._active: Sequence[torch.Generator] = ()
        self._examples: Sequence[int] = ()

    @contextmanager
    def of(self, low: int, examples: Sequence[int]) -> Iterator[None]:
        """Let dropout under vmap be that of the clients `low`, `low` + 1, ...

        `examples` says how many rows of the batch are each client's own; others are padding.
        """
        self._active = self._generators[low : low + len(examples)]
        self._examples = examples
        with _replaced(self._by_client):
            yield

    def _by_client(self, original: Dropout, by_feature: bool) -> Dropout:
        def masked(
            input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
        ) -> torch.Tensor:
            if not training or not p:
                return original(input, p, training, inplace)
            mask: torch.Tensor = _Mask.apply(input.detach(), p, by_feature, self)  # type: ignore[no-untyped-call]
            return input * mask

        return masked

    def draw(self, values: torch.Tensor, rate: float, by_feature: bool) -> torch.Tensor:
        """Return what values (clients, batch, ...) are multiplied by."""
        shape = values.shape[1:]
        if by_feature:
            shape = torch.Size([*shape[:2], *(1 for _ in shape[2:])])
        masks = torch.zeros((len(values), *shape), dtype=values.dtype, device=values.device)
        for mask, generator, own in zip(masks, self._active, self._examples, strict=True):
            mask[:own].bernoulli_(1 - rate, generator=generator)
        return masks.div_(1 - rate) if rate < 1 else masks


class _Mask(torch.autograd.Function):
    """Draws masks where a function for one client is mapped over many."""

    @staticmethod
    def forward(
        values: torch.Tensor, rate: float, by_feature: bool, source: ClientDropout
    ) -> torch.Tensor:
        return source.draw(values.unsqueeze(0), rate, by_feature)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        values: torch.Tensor,
        rate: float,
        by_feature: bool,
        source: ClientDropout,
    ) -> tuple[torch.Tensor, int]:
        where = in_dims[0]
        if where is None:
            values = values.expand(info.batch_size, *values.shape)
        else:
            values = values.movedim(where, 0)
        return source.draw(values, rate, by_feature), 0
