"""MOON (Li, He, Song 2021): features near the global model's, and far from the client's last ones."""

from typing import Annotated

import torch
from torch.nn.functional import cosine_similarity

import meadow


class Client(meadow.LocalAlgorithm):
    features = ("body",)  # the module whose output is compared
    keeps = "previous"  # the client state: the params that it trained last

    def __init__(self, mu: float, temperature: float) -> None:
        self.mu, self.temperature = mu, temperature

    def begins(self, start: torch.Tensor) -> torch.Tensor:
        return start  # before its first round a client's last params are the global ones

    def loss(self, step: meadow.TrainingStep) -> torch.Tensor:
        own = step.features["body"]
        near = cosine_similarity(own, step.under(step.start).features["body"])
        far = cosine_similarity(own, step.under(step.kept("previous")).features["body"])
        contrast = torch.nn.functional.softplus((far - near) / self.temperature)
        return step.task_losses() + self.mu * contrast

    def answer(self, end: meadow.LocalRound) -> meadow.Answer:
        kept = {f"previous/{name}": end.trained[name] for name in end.learned}
        return meadow.Answer(params=end.trained, client_state=kept)


@meadow.builder(keeps="the params that it trained last", privacy=("client",))
def moon(
    *,
    mu: Annotated[float, meadow.Bounds(at_least=0)] = 1.0,
    temperature: Annotated[float, meadow.Bounds(above=0)] = 0.5,
) -> meadow.Algorithm:
    """Average the params of clients that also minimise mu times the contrastive loss."""
    return meadow.averaging("moon", client=Client(mu, temperature))
