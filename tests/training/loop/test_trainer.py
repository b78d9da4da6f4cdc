"""Training at one site: what torch would do, the same bits every time, and clear refusals."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from meadow.errors import DataError
from meadow.machine.accelerators import accelerators
from meadow.training.device_use import choose_device
from meadow.training.loop.trainer import train
from meadow.training.module_params import build_module, params_of_module
from meadow.training.objectives import proximal
from meadow.training.settings import TrainingSettings


def linear() -> nn.Module:
    return nn.Linear(4, 2)


def trained(kit: Any, data: Any, client: int = 1, **settings: Any) -> dict[str, bytes]:
    task = kit.task(model=settings.pop("model", linear))
    module = build_module(task, 0)
    train(task, module, data, TrainingSettings(**settings), client=client, device="cpu")
    return {name: array.tobytes() for name, array in params_of_module(module).items()}


def by_hand(
    kit: Any, optimizer: Any, *, batch_size: int, rounds: int = 1, mu: float = 0.0
) -> dict[str, bytes]:
    """Train as the trainer should, with nothing but torch; batches are the whole data."""
    module = build_module(kit.task(model=linear), 0)
    inputs, targets = kit.samples(0, 24)
    steps = optimizer(list(module.parameters()))
    starts = [p.detach().clone() for p in module.parameters()]
    for _ in range(rounds):
        order = torch.arange(24)
        loss = kit.cross_entropy(module(inputs[order]), targets[order]).mean()
        if mu:
            loss = loss + mu / 2 * sum(
                ((p - s) ** 2).sum() for p, s in zip(module.parameters(), starts, strict=True)
            )
        steps.zero_grad()
        loss.backward()
        steps.step()
    return {name: array.tobytes() for name, array in params_of_module(module).items()}


def close(one: dict[str, bytes], other: dict[str, bytes]) -> bool:
    return all(
        np.allclose(
            np.frombuffer(one[n], np.float32), np.frombuffer(other[n], np.float32), atol=1e-6
        )
        for n in one
    )


@pytest.mark.parametrize(
    ("settings", "optimizer"),
    [
        (
            {"optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01},
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
        ),
        (
            {"optimizer": "adam", "learning_rate": 0.01, "beta_1": 0.8, "epsilon": 1e-6},
            lambda p: torch.optim.Adam(p, 0.01, betas=(0.8, 0.999), eps=1e-6),
        ),
        (
            {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
            lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
        ),
    ],
)
def test_optimizers_are_torchs(kit: Any, settings: dict[str, Any], optimizer: Any) -> None:
    """Three full-batch epochs give what three steps of torch's own optimizer give."""
    ours = trained(kit, kit.samples(0, 24), epochs=3, batch_size=24, **settings)
    assert close(ours, by_hand(kit, optimizer, batch_size=24, rounds=3))


def test_the_proximal_term_pulls_back(kit: Any) -> None:
    """FedProx's correction is the gradient of mu/2 ||w - w0||^2 added to the loss."""
    ours = trained(
        kit, kit.samples(0, 24), epochs=3, batch_size=24, learning_rate=0.1, proximal_mu=0.5
    )
    theirs = by_hand(kit, lambda p: torch.optim.SGD(p, 0.1), batch_size=24, rounds=3, mu=0.5)
    assert close(ours, theirs)


def test_the_objective_takes_a_client_axis() -> None:
    """The same function corrects one client's tensors and a whole cohort's."""
    gradients, params, start = torch.randn(3, 5, 2), torch.randn(3, 5, 2), torch.randn(5, 2)
    together = proximal(gradients, params, start, mu=0.3)
    for index in range(3):
        alone = proximal(gradients[index], params[index], start, mu=0.3)
        assert torch.equal(together[index], alone)


def test_accumulated_batches_make_one_step(kit: Any) -> None:
    """Four batches of 6 with accumulation are one step on 24, whatever their order."""
    data = kit.samples(0, 24)
    parts = trained(kit, data, batch_size=6, accumulation_steps=4, learning_rate=0.1)
    whole = trained(kit, data, batch_size=24, learning_rate=0.1)
    assert close(parts, whole)


def test_uneven_accumulation_weighs_examples_equally(kit: Any) -> None:
    """A smaller last batch counts by its examples, not as a whole batch."""
    data = kit.samples(0, 24)
    parts = trained(kit, data, batch_size=10, accumulation_steps=3, learning_rate=0.1)
    assert close(parts, trained(kit, data, batch_size=24, learning_rate=0.1))


def test_gradients_are_clipped(kit: Any) -> None:
    """With learning rate 1 a step is as long as the clipped gradient."""
    task = kit.task(model=linear)
    module = build_module(task, 0)
    before = torch.cat([p.detach().clone().flatten() for p in module.parameters()])
    settings = TrainingSettings(batch_size=24, learning_rate=1.0, gradient_clip_norm=1e-3)
    train(task, module, kit.samples(0, 24), settings, client=1, device="cpu")
    after = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert float((after - before).norm()) == pytest.approx(1e-3, rel=1e-3)


def test_means_and_samples_are_reported(kit: Any) -> None:
    """The loss is the mean over all examples before each step; samples are of one epoch."""
    task = kit.task(model=linear)
    module = build_module(task, 0)
    inputs, targets = kit.samples(0, 24)
    with torch.no_grad():
        expected = float(kit.cross_entropy(module(inputs), targets).mean())
    settings = TrainingSettings(epochs=3, batch_size=5, learning_rate=0.0)
    samples, means = train(task, module, (inputs, targets), settings, client=1, device="cpu")
    assert samples == 24
    assert means["loss"] == pytest.approx(expected, rel=1e-6)
    assert 0 <= means["accuracy"] <= 1


class Augmented(torch.utils.data.Dataset[Any]):
    """A Dataset that draws from every global generator, as augmentations do."""

    def __init__(self, kit: Any, count: int = 20) -> None:
        self.inputs, self.targets = kit.samples(5, count)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = random.random() + np.random.rand() + float(torch.rand(()))
        return self.inputs[index] + noise, self.targets[index]


def every_kind_of_data(kit: Any) -> dict[str, Any]:
    loader = torch.utils.data.DataLoader
    generator = torch.Generator()
    return {
        "pair": kit.samples(0, 23),
        "dataset": Augmented(kit),
        "loader": loader(Augmented(kit), batch_size=4, shuffle=True),
        "loader with a generator": loader(
            Augmented(kit), batch_size=4, shuffle=True, generator=generator
        ),
    }


KINDS = ["pair", "dataset", "loader", "loader with a generator"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_bits(kit: Any, kind: str) -> None:
    """Dropout, order and augmentation depend on (seed, round, client), and on nothing before."""
    data = every_kind_of_data(kit)[kind]
    task = kit.task()
    first = trained(kit, data, model=task.model, seed=3, server_round=2)
    torch.rand(17), random.random(), np.random.rand(5)
    trained(kit, kit.samples(9, 7), client=9, model=task.model)
    assert trained(kit, data, model=task.model, seed=3, server_round=2) == first
    for other in ({"seed": 4, "server_round": 2}, {"seed": 3, "server_round": 3}):
        assert trained(kit, data, model=task.model, **other) != first
    assert trained(kit, data, client=2, model=task.model, seed=3, server_round=2) != first


def test_global_generators_are_left_alone(kit: Any) -> None:
    """Whoever shares the process draws the same numbers as without the training."""
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = torch.rand(3).tolist(), random.random(), float(np.random.rand())
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    trained(kit, Augmented(kit), model=kit.task().model)
    assert (torch.rand(3).tolist(), random.random(), float(np.random.rand())) == expected


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_trains_in_float32(kit: Any, precision: Any) -> None:
    """The forward pass is rounded, the params stay float32 and learn the same thing."""
    task = kit.task(model=linear)
    module = build_module(task, 0)
    settings = TrainingSettings(
        epochs=30, batch_size=8, learning_rate=0.5, precision=precision, gradient_clip_norm=10.0
    )
    _, means = train(task, module, kit.samples(0, 64), settings, client=1, device="cpu")
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert means["accuracy"] > 0.9


def test_frozen_params_stay(kit: Any) -> None:
    """Params without gradients are neither changed nor in the way."""

    def half_frozen() -> nn.Module:
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        module[0].requires_grad_(False)
        return module

    before = params_of_module(build_module(kit.task(model=half_frozen), 0))
    after = trained(kit, kit.samples(0, 24), model=half_frozen, proximal_mu=0.1)
    assert after["0.weight"] == before["0.weight"].tobytes()
    assert after["1.weight"] != before["1.weight"].tobytes()


@pytest.mark.parametrize(
    ("changes", "data", "sentence"),
    [
        ({}, "empty", "there are no samples"),
        ({}, "uneven", "there are 3 inputs but 2 targets"),
        ({}, "list", "a batch must be a pair of tensors"),
        ({"loss": nn.functional.cross_entropy}, "good", r"loss must give one value .*reduction="),
        ({"metrics": {"f1": lambda o, t: 0.5}}, "good", "f1 must give one value .* got float"),
        ({}, "infinite", "the training loss is nan in round 1, epoch 1; lower"),
    ],
)
def test_useless_data_are_refused(
    kit: Any, changes: dict[str, Any], data: str, sentence: str
) -> None:
    """Each mistake in data or task is a sentence that says what would be right."""
    inputs, targets = kit.samples(0, 24)
    kinds: dict[str, Any] = {
        "empty": (inputs[:0], targets[:0]),
        "uneven": (inputs[:3], targets[:2]),
        "list": [1, 2, 3],
        "good": (inputs, targets),
        "infinite": (inputs * float("inf"), targets),
    }
    task = kit.task(**{"model": linear, **changes})
    with pytest.raises(DataError, match=sentence):
        train(task, build_module(task, 0), kinds[data], TrainingSettings(), client=7, device="cpu")


def test_devices_that_are_not_there_are_refused() -> None:
    """A wrong device is refused before anything is loaded, and "auto" always works."""
    assert choose_device("cpu") == "cpu"
    assert choose_device("auto") == [*accelerators(), "cpu"][0]
    with pytest.raises(DataError, match="is not there: torch sees"):
        choose_device("cuda:99")
    with pytest.raises(DataError, match="is unknown; say"):
        choose_device("gpu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_no_mean_of_the_losses_is_computed_and_its_gradient_is_the_same_to_the_bit(
    kit: Any, dtype: torch.dtype
) -> None:
    means: list[torch.Tensor] = []

    class Losses(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if getattr(func, "__name__", "") == "mean":
                means.append(args[0])
            return super().__torch_function__(func, types, args, kwargs or {})

    for count in (1, 3, 7, 10, 49, 1000):
        losses = torch.rand(count, dtype=dtype, requires_grad=True)
        losses.mean().backward()
        seen: list[torch.Tensor] = []
        module = nn.Linear(1, 1, bias=False)

        def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            made = outputs[:, 0].to(dtype)
            made.register_hook(lambda gradient: seen.append(gradient.clone()))  # noqa: B023
            return made.as_subclass(Losses)

        task = kit.task(model=lambda: module, loss=loss)  # noqa: B023
        data = torch.rand(count, 1), torch.zeros(count)
        train(task, module, data, TrainingSettings(batch_size=count), client=1, device="cpu")
        assert losses.grad is not None
        assert torch.equal(seen[0], losses.grad)
        assert not means
