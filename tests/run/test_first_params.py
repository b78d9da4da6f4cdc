"""The params before the first round: a large model is built elsewhere, and has the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from meadow.apps.folder import App
from meadow.errors import AppError
from meadow.flower.messages import arrays_to_params, tensors_of
from meadow.run import first_params as module
from meadow.run.app import initial_arrays
from meadow.run.first_params import first_params
from meadow.transport.tensors import FileTensor

TASK = """
import os
import torch
from torch import nn
import meadow

BUILT = []

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        try:
            self.first = nn.Linear(50, 40)
            self.norm = nn.BatchNorm1d(40)
            self.brain = nn.Parameter(torch.randn(7, 3).to(torch.bfloat16))
            self.scalar = nn.Parameter(torch.tensor(0.5))
            self.empty = nn.Parameter(torch.empty(0, 4))
            self.turned = nn.Parameter(torch.randn(30, 20).t())
            self.second = nn.Linear(50, 40)
            self.second.weight = self.first.weight
        except Exception:
            raise SystemExit("the model heard of it")
        if os.environ.get("MODEL_FAILS") and not BUILT.append(1) and len(BUILT) == 1:
            raise ValueError("there are no weights")

    def forward(self, inputs):
        return self.first(inputs)

task = meadow.Task(model=Model, loss=lambda o, t: o, client_data=lambda site: None)
"""


@pytest.fixture
def app(tmp_path: Path) -> App:
    """An app with tied weights, bfloat16, a scalar, an empty and a transposed tensor."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "task.py").write_text(TASK)
    (folder / "meadow.toml").write_text("[run]\nrounds = 1\nseed = 3\n")
    return App.load(folder, overrides=["run.seed=4"])


def test_a_large_model_is_in_a_file_with_the_same_bits(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, order, shapes, dtypes and values are those of a model that was built here."""
    task = app.load_task()
    here = first_params(app, task, 4, tmp_path / "first")
    assert not (tmp_path / "first").exists()
    monkeypatch.setattr(module, "LARGE_BYTES_MIN", 4000)
    stored = first_params(app, task, 4, tmp_path / "first")
    assert all(isinstance(tensor, FileTensor) for tensor in tensors_of(stored).values())
    expected, found = arrays_to_params(initial_arrays(task, 4)), arrays_to_params(stored)
    assert list(found) == list(expected) == list(here)
    for name, values in expected.items():
        assert (found[name].dtype, found[name].shape) == (values.dtype, values.shape), name
        assert found[name].tobytes() == values.tobytes(), name
    assert np.array_equal(found["first.weight"], found["second.weight"])
    nn.Linear(100, 100)  # nothing counts any more


def test_a_model_that_fails_elsewhere_says_so(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process's last line is in the error."""
    task = app.load_task()
    monkeypatch.setattr(module, "LARGE_BYTES_MIN", 4000)
    monkeypatch.setenv("MODEL_FAILS", "1")
    with pytest.raises(AppError, match=r"builds the model .* failed: .*there are no weights"):
        first_params(app, task, 4, tmp_path / "first")
    assert not (tmp_path / "first").exists()
