"""The optimizer of one client's round: it begins anew with every round."""

from __future__ import annotations

import torch

from .training_settings import TrainingSettings

__all__ = ["build_optimizer"]

FUSED_ON = ("cpu", "cuda")


def build_optimizer(
    params: list[torch.nn.Parameter], settings: TrainingSettings
) -> torch.optim.Optimizer:
    """Return torch's optimizer with this round's learning rate."""
    rate = settings.learning_rate_now()
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            params, lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(
        params,
        lr=rate,
        betas=(settings.beta_1, settings.beta_2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=all(param.device.type in FUSED_ON for param in params),
    )
