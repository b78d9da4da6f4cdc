"""FedNTD (Lee et al. 2022): clients keep what the global model says of the classes they do not see."""

from typing import Annotated

import torch
from torch.nn.functional import kl_div, log_softmax

import meadow


class Client(meadow.LocalAlgorithm):
    def __init__(self, beta: float, temperature: float) -> None:
        self.beta, self.temperature = beta, temperature

    def loss(self, step: meadow.TrainingStep) -> torch.Tensor:
        student = self.not_true(step.outputs, step.targets)
        teacher = self.not_true(step.under(step.start).outputs, step.targets)
        apart = kl_div(student, teacher, reduction="none", log_target=True).sum(1)
        return step.task_losses() + self.beta * self.temperature**2 * apart

    def not_true(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities of the classes but the true one, (batch, classes)."""
        true = torch.arange(outputs.shape[1], device=outputs.device) == targets[:, None]
        return log_softmax(outputs.masked_fill(true, -1e4) / self.temperature, dim=1)


@meadow.builder(privacy=("client",))
def distillation(
    *,
    beta: Annotated[float, meadow.Bounds(at_least=0)] = 1.0,
    temperature: Annotated[float, meadow.Bounds(above=0)] = 1.0,
) -> meadow.Algorithm:
    """Average the params of clients whose loss has beta times the not-true distillation."""
    return meadow.averaging("distillation", client=Client(beta, temperature))
