"""A client's training on an accelerator is that on the CPU, to the bit, and goes on where it was cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import meadow
from meadow.privacy.dp.example_level import ExampleTerms
from meadow.privacy.dp.mechanisms.noise import generator_from
from meadow.training.evaluation import evaluate
from meadow.training.loop.dp_sgd import train_dp_sgd
from meadow.training.loop.trainer import train
from meadow.training.mid_epoch import MidEpoch
from meadow.training.module_params import build_module, params_of_module
from meadow.training.parallel.data_parallel import DataParallel
from meadow.training.settings import TrainingSettings
from meadow.training.warm_module import WarmModule

DEVICE = "strict:1"
"""Not the first: what forgets to say where it belongs is found out."""
Tensors = dict[str, torch.Tensor]


def images(count: int = 23) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, 1, 6, 6, generator=generator)
    return inputs, (inputs.mean((1, 2, 3)) > 0).long()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 2))


def cnn() -> nn.Module:
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    return nn.Sequential(*layers)


def plain_cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 2))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.Dropout(0.5), nn.Linear(16, 2))


class Recurrent(nn.Module):
    """A recurrent layer over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.RNN(6, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.layer(inputs.squeeze(1))[0][:, -1])
        return result


def task_of(model: Any) -> meadow.Task:
    return meadow.Task(
        model=model,
        loss=lambda out, want: nn.functional.cross_entropy(out, want, reduction="none"),
        metrics={"accuracy": lambda out, want: (out.argmax(1) == want).float()},
        client_data=lambda site: meadow.ClientData(train=images()),
    )


def trained(model: Any, device: str, **options: Any) -> tuple[Tensors, dict[str, float]]:
    """Train a round, and return params, buffers and means."""
    told = {
        name: options.pop(name) for name in ("parallelism", "saves", "resume_at") if name in options
    }
    settings = TrainingSettings(
        **{"batch_size": 8, "epochs": 2, "learning_rate": 0.1, "seed": 5, **options}
    )
    module = build_module(task_of(model), 5).to(device)
    rows = images()
    _, means = train(task_of(model), module, rows, settings, client=1, device=device, **told)
    assert {str(each.device) for each in module.state_dict().values()} == {device}
    return {name: each.cpu().clone() for name, each in module.state_dict().items()}, means


def assert_same(one: Tensors, other: Tensors) -> None:
    assert list(one) == list(other)
    for name, values in other.items():
        assert torch.equal(one[name], values), name


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9, "gradient_clip_norm": 0.5, "accumulation_steps": 2},
        {"optimizer": "adam", "learning_rate": 0.01, "proximal_mu": 0.1},
        {"precision": "bf16"},
        {"precision": "fp16"},
    ],
)
@pytest.mark.parametrize("model", [mlp, cnn, Recurrent])
def test_training_is_that_of_the_cpu(model: Any, settings: dict[str, Any]) -> None:
    """Params, buffers, loss and metrics are the same bits; where the CPU rounds in another way, as
    under autocast, they are close."""
    ours, means = trained(model, DEVICE, **settings)
    theirs, expected = trained(model, "cpu", **settings)
    if model is Recurrent and "precision" not in settings:  # the CPU's layer rounds in its own way
        assert means == pytest.approx(expected, rel=1e-5)
        for name, values in theirs.items():
            torch.testing.assert_close(ours[name], values, rtol=1e-3, atol=1e-5)
        return
    if "precision" not in settings:
        assert_same(ours, theirs)
        assert means == expected
        return
    plain, _ = trained(model, "cpu")
    for name, values in theirs.items():
        torch.testing.assert_close(ours[name], values, rtol=0.05, atol=0.01)
    assert any(not torch.equal(plain[name], values) for name, values in ours.items())


def test_evaluation_is_that_of_the_cpu() -> None:
    """Loss and metrics are the same, and the module stays where it is."""
    told = []
    for device in (DEVICE, "cpu"):
        module = build_module(task_of(cnn), 5).to(device)
        told.append(evaluate(task_of(cnn), module, images(), batch_size=8, device=device))
    assert told[0] == told[1]


def test_records_are_protected_as_on_the_cpu() -> None:
    """DP-SGD draws the same records and noise, and makes the same steps."""
    terms = ExampleTerms(noise_multiplier=1.0, clip_norm=0.5, rate=0.4)
    made = []
    for device in (DEVICE, "cpu"):
        module = build_module(task_of(plain_cnn), 5).to(device)
        coins = generator_from(bytes(range(32)))
        settings = TrainingSettings(batch_size=8, epochs=1, learning_rate=0.1, seed=5)
        train_dp_sgd(
            task_of(plain_cnn), module, images(), settings, terms, client=1, device=device,
            sampling=coins,
        )  # fmt: skip
        made.append({name: each.cpu() for name, each in module.state_dict().items()})
    for name, values in made[1].items():
        torch.testing.assert_close(made[0][name], values, rtol=1e-5, atol=1e-6)


class CutError(Exception):
    """Stands for the death of the process."""


@pytest.mark.parametrize("step", [2, 4, 5])
@pytest.mark.parametrize(
    "settings", [{"optimizer": "adam"}, {"momentum": 0.9, "precision": "fp16"}]
)
def test_a_cut_round_goes_on(tmp_path: Path, step: int, settings: dict[str, Any]) -> None:
    """A round that is resumed in the middle of an epoch gives the bits that it would have given:
    dropout too, so the device's generator was saved."""
    expected, means = trained(dropping, DEVICE, **settings)
    saves = MidEpoch(folder=tmp_path / "saves", every_steps=1)

    class Cut(MidEpoch):
        def write(self, at: int, rank: int, moment: Any) -> None:
            super().write(at, rank, moment)
            if at == step:
                raise CutError

    with pytest.raises(CutError):
        cut = Cut(folder=saves.folder, every_steps=1)
        trained(dropping, DEVICE, saves=cut, **settings)
    assert saves.latest() == step
    ours, told = trained(dropping, DEVICE, saves=saves, resume_at=step, **settings)
    assert_same(ours, expected)
    assert told == means


def test_training_repeats_itself_and_leaves_no_trace() -> None:
    """Dropout depends on the seed alone, and no generator is left changed."""
    before = torch.get_device_module(DEVICE).get_rng_state(DEVICE)
    one, other = trained(dropping, DEVICE)[0], trained(dropping, DEVICE)[0]
    assert_same(one, other)
    assert torch.equal(torch.get_device_module(DEVICE).get_rng_state(DEVICE), before)


@pytest.mark.parametrize("count", [23, 17])
def test_two_devices_in_one_process(count: int) -> None:
    """ "data_parallel" makes the update of one device, on modules whose params are tied or
    recurrent; what the second draws depends on the seed alone."""
    parallelism = DataParallel(("strict:0", "strict:1"))
    for model in (mlp, plain_cnn, Recurrent):
        ours, means = trained(model, "strict:0", parallelism=parallelism, batch_size=count // 2)
        theirs, expected = trained(model, "cpu", batch_size=count // 2)
        for name, values in theirs.items():
            torch.testing.assert_close(ours[name], values, rtol=1e-4, atol=1e-6)
        assert means == pytest.approx(expected, rel=1e-5)
    second = torch.get_device_module("strict:1").get_rng_state("strict:1")
    drawn = [
        trained(dropping, "strict:0", parallelism=DataParallel(("strict:0", "strict:1")))[0]
        for _ in range(2)
    ]
    assert_same(*drawn)
    assert torch.equal(torch.get_device_module("strict:1").get_rng_state("strict:1"), second)


def test_memory_that_runs_out_makes_pieces_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accelerator's own error is known as one of memory: the step is made of halves."""

    def wide() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 4096), nn.ReLU(), nn.Linear(4096, 2))

    theirs, _ = trained(wide, "cpu", batch_size=23, epochs=1)
    monkeypatch.setenv("STRICT_MEMORY_BYTES", str(2_900_000))
    ours, _ = trained(wide, DEVICE, batch_size=23, epochs=1)
    for name, values in theirs.items():
        torch.testing.assert_close(ours[name], values, rtol=1e-4, atol=1e-6)


def test_a_module_is_used_again() -> None:
    """The module that is kept on the device takes other params, and gives what it has."""
    task = task_of(cnn)
    warm = WarmModule(task, DEVICE)
    params = params_of_module(build_module(task, 9))
    module = warm.with_some(params, seed=5)
    assert all(str(each.device) == DEVICE for each in module.state_dict().values())
    found = params_of_module(module)
    assert all((found[name] == values).all() for name, values in params.items())
