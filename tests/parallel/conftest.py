"""An app on disk, as ranks load it, and rounds of it on one process or several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from meadow.apps import App
from meadow.client.local_training import LocalTraining, Round
from meadow.client.training_settings import TrainingSettings
from meadow.flower import params_to_arrays
from meadow.module_params import build_module, params_of_module
from meadow.client.warm_module import WarmModule
from meadow.sections.device import DeviceConfig
from meadow.task import Site

TASK = '''
import os, signal
from pathlib import Path
import meadow, torch
from torch import nn

STEPS = 0

class Unused(nn.Module):
    """Params that no output depends on, and a batch norm over all examples."""
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(3, 3)
        self.conv = nn.Conv2d(1, 4, 3, bias=False)  # Adam would blow up the rounding in its gradient
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(64, 3)

    def forward(self, inputs):
        return self.out(torch.relu(self.norm(self.conv(inputs))).flatten(1))

def loss(outputs, targets):
    """Counts passes; dies, hangs or runs out of memory where the folder says so."""
    global STEPS
    STEPS += 1
    here = Path(FOLDER)
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    for act in ("kill", "stop", "raise"):
        file = here / f"{act}-{rank}"
        if file.exists() and STEPS >= int(file.read_text()):
            file.unlink()
            if act == "raise":
                raise ValueError("a bad scan")
            os.kill(os.getpid(), signal.SIGKILL if act == "kill" else signal.SIGSTOP)
    bound = here / "memory"
    if bound.exists() and len(targets) > int(bound.read_text()):
        raise torch.OutOfMemoryError("simulated")
    return nn.functional.cross_entropy(outputs, targets, reduction="none")

def accuracy(outputs, targets):
    return (outputs.argmax(dim=1) == targets).float()

def load(site):
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(53, 1, 6, 6, generator=generator)
    return meadow.ClientData(train=(inputs, (inputs.sum((1, 2, 3)).long() % 3).abs()))

task = meadow.Task(model=Unused, loss=loss, metrics={"accuracy": accuracy}, client_data=load)
'''


class Bench:
    """One app, trained in this process alone or with ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        app = folder / "app"
        app.mkdir()
        (app / "task.py").write_text(TASK.replace("FOLDER", repr(str(folder))))
        (app / "meadow.toml").write_text('[app]\ntask = "task:task"\n')
        self.app = App.load(app, environ={})
        self.task = self.app.load_task()
        self._modules: dict[LocalTraining, WarmModule] = {}
        self._rounds = 0

    def say(self, name: str, text: object) -> None:
        """Leave a word for the app."""
        (self.folder / name).write_text(str(text))

    def training(self, **device: Any) -> LocalTraining:
        """Return what trains as an owner's [device] says."""
        return LocalTraining.owned(
            self.task,
            DeviceConfig(device="cpu", **device),
            app_dir=str(self.app.folder),
            sha256=self.app.sha256,
            client_dir=self.folder,
        )

    def train(
        self, training: LocalTraining, *, key: str = "", **settings: Any
    ) -> tuple[dict[str, torch.Tensor], int, dict[str, float]]:
        """Train a round; returns the params, the samples and the means."""
        self._rounds += 1
        data = self.task.client_data(Site(index=0, count=2)).train
        module = self._modules.setdefault(training, WarmModule(self.task, "cpu"))
        arrays = params_to_arrays(params_of_module(build_module(self.task, 5)))
        trained, samples, means = training.train(
            Round(
                site=Site(index=0, count=2),
                data=data,
                settings=TrainingSettings(**settings),
                client=1,
                load=lambda generation: module.with_params(
                    arrays, seed=0, generation=generation
                ),
                key=(key or self._rounds,),
            )
        )
        params = {name: value.clone() for name, value in trained.state_dict().items()}
        return params, samples, means


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest relative difference of two models' tensors."""
    assert list(one) == list(other)
    return max(
        float((one[name] - other[name]).double().norm() / other[name].double().norm().clamp(1e-12))
        for name in one
    )


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Return the app, with no word left for it."""
    yield Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def pair(bench: Bench) -> Iterator[LocalTraining]:
    """Two ranks of one thread."""
    training = bench.training(parallel="ddp", processes=2, rank_timeout_s=20.0, save_steps=2)
    yield training
    training.close()
