"""What the owner's file says about memory, layout and loading changes no update."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import meadow
from meadow.config.sections.device import DeviceConfig
from meadow.errors import DataError
from meadow.machine.accelerators import accelerators
from meadow.training.device_use import DeviceUse
from meadow.training.loop.trainer import train
from meadow.training.recomputation import recompute
from meadow.training.settings import TrainingSettings
from meadow.training.warm_module import WarmModule

SETTINGS = TrainingSettings(epochs=2, batch_size=5, learning_rate=0.05)
INPUTS = torch.randn(23, 2, 6, 6, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS.sum((1, 2, 3)).long().abs() % 3


class Net(nn.Module):
    """Three blocks, with a batch norm and dropout."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        first = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.blocks = nn.ModuleList([first, nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 3))])
        self.head = nn.Sequential(nn.Dropout(drop), nn.Linear(64, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.strides = inputs.stride()
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs.flatten(1))


class Pictures(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Items that leave a note in a folder about who loaded them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return len(TARGETS)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        (self.folder / str(os.getpid())).touch()
        return INPUTS[place], TARGETS[place]


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def no_data(site: meadow.Site) -> meadow.ClientData:
    raise AssertionError("the tests give the data")


def trained(use: DeviceUse, data: object = (INPUTS, TARGETS), *, drop: float = 0.3) -> nn.Module:
    """Train a round; returns the module."""
    task = meadow.Task(model=lambda: Net(drop), loss=loss, client_data=no_data)
    module = WarmModule(task, "cpu", use.prepare).fresh(seed=1)
    train(task, module, data, SETTINGS, client=1, device="cpu", use=use)  # type: ignore[arg-type]
    return module


def distance(one: nn.Module, other: nn.Module) -> float:
    """Return the largest relative difference of two modules' tensors."""
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    found = []
    for (name, ours), (same, theirs) in pairs:
        assert name == same
        apart = (ours - theirs).double().norm()
        found.append(float(apart / theirs.double().norm().clamp(1e-12)))
    return max(found)


@pytest.fixture(scope="module")
def plain() -> nn.Module:
    """The module that is trained without any of it."""
    return trained(DeviceUse())


def test_blocks_are_computed_again(plain: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is computed twice a step, with the same dropout; running means count once."""
    passes: list[int] = []
    forward = nn.Conv2d.forward

    def counted(layer: nn.Conv2d, inputs: torch.Tensor) -> torch.Tensor:
        passes.append(len(inputs))
        return forward(layer, inputs)

    monkeypatch.setattr(nn.Conv2d, "forward", counted)
    again = trained(DeviceUse(checkpoint_activations=True))
    assert len(passes) == 2 * 2 * 2 * 5  # twice, layers, epochs, batches
    assert distance(again, plain) == 0


def test_channels_lie_last(plain: nn.Module) -> None:
    """Images and convolutions have the other layout; the update is the same within rounding."""
    other = trained(DeviceUse(channels_last=True))
    assert isinstance(other, Net)
    assert other.strides[1] == 1, "the images"
    assert other.state_dict()["blocks.1.1.weight"].stride()[1] == 1
    assert distance(other, plain) < 1e-5


def test_images_of_one_channel_lie_like_the_others() -> None:
    """Their strides say so, which is what convolutions go by."""
    placed = DeviceUse(channels_last=True).place(
        (torch.ones(2, 1, 4, 5), torch.zeros(2)), torch.device("cpu")
    )[0]
    assert placed.stride() == (20, 1, 5, 1)


def test_a_compiled_model_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch compiles it, and what comes of it differs by rounding; dropout
    would draw other numbers."""
    from torch._dynamo.utils import counters

    cheap = partial(torch.compile, backend="eager")  # without the compiler for the device
    monkeypatch.setattr(torch, "compile", cheap)
    before = counters["stats"]["unique_graphs"]
    compiled = trained(DeviceUse(compile=True), drop=0.0)
    assert counters["stats"]["unique_graphs"] > before
    assert distance(compiled, trained(DeviceUse(), drop=0.0)) < 1e-5


def test_other_processes_load_the_items(plain: nn.Module, tmp_path: Path) -> None:
    """Items come from so many processes, in the same order."""
    made = trained(DeviceUse(loader_processes=2), Pictures(tmp_path))
    loaders = {path.name for path in tmp_path.iterdir()}
    assert len(loaders) == 2 * SETTINGS.epochs and str(os.getpid()) not in loaders
    assert distance(made, plain) == 0


@pytest.mark.parametrize(
    ("kind", "config", "sentence"),
    [
        ("fsdp", {"channels_last": True}, r"device\.channels_last needs the whole model"),
        ("pipeline", {"compile": True}, r"device\.compile needs the whole model"),
        ("none", {"pin_memory": True}, "copies to an accelerator, and training runs on 'cpu'"),
    ],
)
def test_what_would_do_nothing_is_refused(
    kind: str, config: dict[str, bool], sentence: str
) -> None:
    """No key is silently without effect."""
    with pytest.raises(DataError, match=sentence):
        DeviceUse.of(DeviceConfig(**config), kind=kind, device="cpu")  # type: ignore[arg-type]


def test_a_model_without_blocks_says_so() -> None:
    """Single layers have nothing inside that could be computed again."""
    with pytest.raises(DataError, match="computes blocks again, and Linear has none"):
        recompute(nn.Linear(3, 3))


@pytest.mark.skipif(not accelerators(), reason="needs an accelerator")
def test_pinned_batches_are_the_same(plain: nn.Module) -> None:
    """Batches reach the accelerator unchanged from pinned memory."""
    use, device = DeviceUse(pin_memory=True), torch.device(accelerators()[0])
    assert torch.equal(use.place((INPUTS, INPUTS), device)[0].cpu(), INPUTS)
