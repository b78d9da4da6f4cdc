"""The models of the benchmark `simulation_models`, the same for Meadow, plain loops and pfl-research.

Twenty clients of forty random samples, batches of ten, one epoch; imports torch and numpy only.
Sources: LEAF's FEMNIST CNN is that of Caldas et al. (2018), its character LSTM that of McMahan et al.
(2017) with 128 units; ResNet-8 is that of He et al. (2016) with one block a stage of 16, 32 and 64
channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["BATCH_SIZE", "MODELS", "Work", "samples"]

CLIENTS, SAMPLES, BATCH_SIZE = 20, 40, 10
VOCABULARY = 80


@dataclass(frozen=True)
class Work:
    """A model, the shape of a sample (words for tokens), its classes, and the optimizer."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int = 10
    tokens: bool = False
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0


def small_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(784, 10)),
    )


def femnist_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3136, 2048), nn.ReLU(), nn.Linear(2048, 62)),
    )


class Block(nn.Module):
    def __init__(self, before: int, after: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        stride = after // before
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([norm(after), norm(after)])
        self.short = nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.relu(self.norms[0](self.first(x)))
        made = self.norms[1](self.second(made))
        return torch.relu(made + (x if self.short is None else self.short(x)))


def resnet_8(norm: Callable[[int], nn.Module]) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1, bias=False), norm(16), nn.ReLU()),
        *(Block(16, 16, norm), Block(16, 32, norm), Block(32, 64, norm)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )


class CharLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.cells = nn.LSTM(8, 128, num_layers=2, batch_first=True)
        self.out = nn.Linear(128, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cells(self.embed(x))[0][:, -1])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.places = nn.Parameter(torch.randn(32, 64) * 0.02)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(64, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.embed(x) + self.places).mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip


def text(**options: Any) -> Work:
    return Work(shape=(32,), classes=VOCABULARY, tokens=True, **options)


ADAM: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.001}
IMAGE, COLOUR = (1, 28, 28), (3, 32, 32)
MODELS = {
    "logistic regression": Work(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), shape=IMAGE
    ),
    "mlp with momentum": Work(mlp, shape=IMAGE, learning_rate=0.05, momentum=0.9),
    "mlp with adam": Work(mlp, shape=IMAGE, **ADAM),
    "small cnn": Work(small_cnn, shape=IMAGE),
    "femnist cnn": Work(femnist_cnn, shape=IMAGE, classes=62),
    "resnet-8, group norm": Work(lambda: resnet_8(lambda n: nn.GroupNorm(4, n)), shape=COLOUR),
    "resnet-8, batch norm": Work(lambda: resnet_8(nn.BatchNorm2d), shape=COLOUR),
    "char lstm": text(build=CharLstm),
    "transformer with sgd": text(build=Transformer),
    "transformer with adam": text(build=Transformer, **ADAM),
}


def samples(work: Work) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw every client's samples."""
    generator = np.random.default_rng(0)
    made = []
    for _ in range(CLIENTS):
        shape = (SAMPLES, *work.shape)
        if work.tokens:
            inputs = generator.integers(0, VOCABULARY, shape)
        else:
            inputs = generator.standard_normal(shape, dtype=np.float32)
        made.append((inputs, generator.integers(0, work.classes, SAMPLES)))
    return made
