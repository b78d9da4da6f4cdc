"""FedSAM (Qu et al. 2022): clients descend along the gradient at the worst point nearby."""

from typing import Annotated

import torch

import meadow


class Client(meadow.LocalAlgorithm):
    def __init__(self, rho: float) -> None:
        self.rho = rho

    def train(self, bench: meadow.TrainingBench) -> None:
        params = [param for param in bench.module.parameters() if param.requires_grad]
        for inputs, targets in bench.batches():
            bench.losses(inputs, targets).mean().backward()
            gradients = [param.grad for param in params]
            norm = torch.stack([each.norm() for each in gradients]).norm()
            climbs = [self.rho / (norm + 1e-12) * each for each in gradients]
            self.move(params, climbs, 1.0)
            for param in params:
                param.grad = None
            bench.losses(inputs, targets, note=False).mean().backward()
            self.move(params, climbs, -1.0)
            bench.step()

    @torch.no_grad()
    def move(self, params: list[torch.Tensor], by: list[torch.Tensor], sign: float) -> None:
        for param, step in zip(params, by, strict=True):
            param.add_(step, alpha=sign)


@meadow.builder(privacy=("client",))
def fedsam(*, rho: Annotated[float, meadow.Bounds(above=0)] = 0.05) -> meadow.Algorithm:
    """Average the params of clients that make steps of sharpness-aware minimisation."""
    return meadow.averaging("fedsam", client=Client(rho))
