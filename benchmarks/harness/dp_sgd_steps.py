"""DP-SGD of the same model on the same data, by Meadow's client and by Opacus alone."""

from __future__ import annotations

import time
import warnings

import torch
from opacus import PrivacyEngine
from torch import nn

from meadow.privacy.dp.example_level import ExampleTerms
from meadow.simulations.executors.site_data import Samples
from meadow.simulations.executors.vectorized.cohort_data import CohortData
from meadow.simulations.executors.vectorized.stacked_dp_sgd import train_stacked_dp_sgd
from meadow.simulations.executors.vectorized.stacked_module import StackedModule
from meadow.task import Task
from meadow.training.loop.dp_sgd import train_dp_sgd
from meadow.training.settings import TrainingSettings

__all__ = ["meadow_s", "opacus_s", "stacked_s"]

RECORDS, RATE, EPOCHS, CLIP, NOISE = 600, 0.05, 2, 1.0, 1.0
TERMS = ExampleTerms(clip_norm=CLIP, noise_multiplier=NOISE, rate=RATE)
SETTINGS = TrainingSettings(epochs=EPOCHS, learning_rate=0.1)


def model() -> nn.Module:
    """Return McMahan's 2NN: 199,210 params."""
    return nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


TASK = Task(
    model=model,
    loss=lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none"),
    client_data=lambda site: data_of(site.index),  # type: ignore[arg-type, return-value]
)


def data_of(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's examples: what they are does not change how long it takes."""
    generator = torch.Generator().manual_seed(client)
    inputs = torch.rand(RECORDS, 784, generator=generator)
    return inputs, torch.randint(0, 10, (RECORDS,), generator=generator)


def meadow_s() -> float:
    """Return the seconds of one client's round."""
    module, data = model(), data_of(0)
    began_s = time.perf_counter()
    train_dp_sgd(TASK, module, data, SETTINGS, TERMS, client=1, device="cpu")
    return time.perf_counter() - began_s


def opacus_s() -> float:
    """Return the seconds of as many steps with Opacus's engine, loader and optimizer."""
    module, data = model(), torch.utils.data.TensorDataset(*data_of(0))
    loader = torch.utils.data.DataLoader(data, batch_size=round(RECORDS * RATE))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began_s = time.perf_counter()
        module, optimizer, loader = PrivacyEngine().make_private(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
        )
        for _ in range(EPOCHS):
            for inputs, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(inputs), targets).backward()
                optimizer.step()
    return time.perf_counter() - began_s


def stacked_s(clients: int) -> float:
    """Return the seconds of so many clients' round in the vectorised simulation, each."""
    parts = [Samples.of(data_of(client)) for client in range(clients)]
    data = CohortData.of(parts, device=torch.device("cpu"))
    stacked = StackedModule(TASK, model(), data.probe(), precision="fp32")
    began_s = time.perf_counter()
    train_stacked_dp_sgd(TASK, stacked, data, SETTINGS, TERMS, clients=list(range(1, clients + 1)))
    return (time.perf_counter() - began_s) / clients
