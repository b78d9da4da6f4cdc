"""A small task whose data are a few numbers, and messages as a server would send them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch import nn

import meadow
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.training.module_params import build_module, params_of_module


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(dim=1) == targets).float()


def samples(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator)
    return inputs, (inputs.sum(dim=1) > 0).long()


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)
    )


def load(site: meadow.Site) -> meadow.ClientData:
    return meadow.ClientData(train=samples(site.index, 23), test=samples(100 + site.index, 11))


def make_task(**changes: Any) -> meadow.Task:
    parts: dict[str, Any] = {
        "model": build_model,
        "loss": cross_entropy,
        "metrics": {"accuracy": accuracy},
        "client_data": load,
    }
    return meadow.Task(**{**parts, **changes})


def context_of(node_id: int = 1, *, count: int = 4, **node_config: Any) -> Context:
    node = {"site-index": node_id - 1, "site-count": count, **node_config}
    return Context(run_id=1, node_id=node_id, node_config=node, state=RecordDict(), run_config={})


def message_to(
    node_id: int,
    kind: str,
    arrays: ArrayRecord | None = None,
    config: Mapping[str, Any] | None = None,
) -> Message:
    content = RecordDict()
    if arrays is not None:
        content["arrays"] = arrays
    if config is not None:
        content["config"] = ConfigRecord(dict(config))
    return Message(content, node_id, kind, group_id="1")


def first_params(task: meadow.Task, seed: int = 0) -> ArrayRecord:
    return params_to_arrays(params_of_module(build_module(task, seed)))


def bytes_in(arrays: ArrayRecord) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in arrays_to_params(arrays).items()}


class Kit:
    """What the tests of this folder share."""

    task: Callable[..., meadow.Task] = staticmethod(make_task)
    context = staticmethod(context_of)
    message = staticmethod(message_to)
    params = staticmethod(first_params)
    bytes_in = staticmethod(bytes_in)
    samples = staticmethod(samples)
    cross_entropy = staticmethod(cross_entropy)
    accuracy = staticmethod(accuracy)


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    """The helpers above, by name."""
    identify_process(run_id=1, node_id=0)
    return Kit
