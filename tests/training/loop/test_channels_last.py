"""Channels last on the CPU: the same training but for rounding, and only where nobody can notice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Subset, TensorDataset

import meadow
from meadow.config.sections.device import DeviceConfig
from meadow.errors import DataError
from meadow.training.device_use import DeviceUse
from meadow.training.loop import channels_last
from meadow.training.loop.trainer import train
from meadow.training.micro_batch import MicroBatch
from meadow.training.mid_epoch import MidEpoch
from meadow.training.module_params import build_module
from meadow.training.settings import TrainingSettings

SIZE, CLASSES = 12, 5
BATCH, COUNT = 4, 18
"""The last batch of an epoch has two samples."""
INPUTS = torch.randn(COUNT, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
TARGETS = torch.arange(COUNT) % CLASSES
DATA = INPUTS, TARGETS


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def mean_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss over maps of classes, with a `view` of the module's outputs."""
    return cross_entropy(outputs.view(len(outputs), CLASSES, -1).mean(2), targets)


class With(nn.Module):
    """Some layers, and what is made of them and the inputs."""

    def __init__(self, forward: Callable[..., torch.Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.made = nn.ModuleList(layers), forward

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.made(images, *self.layers)


def conv(before: int, after: int, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, padding=1, **options)


def head(channels: int, *others: nn.Module) -> tuple[nn.Module, ...]:
    return *others, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)


def residual(x: torch.Tensor, first: nn.Module, second: nn.Module, out: nn.Module) -> torch.Tensor:
    x = first(x)
    y = second(x)
    y += x
    return out(torch.relu_(y))  # type: ignore[no-any-return]


def u_net(
    x: torch.Tensor, down: nn.Module, up: nn.Module, side: nn.Module, out: nn.Module
) -> torch.Tensor:
    return out(torch.cat([up(down(x)), side(x)], 1))  # type: ignore[no-any-return]


class Scaled(torch.autograd.Function):
    """A function with a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def tied() -> nn.Module:
    shared = conv(6, 6)
    return nn.Sequential(conv(3, 6), shared, nn.Tanh(), shared, *head(6))


def half_frozen() -> nn.Module:
    module = nn.Sequential(conv(3, 6), nn.ReLU(), conv(6, 8), *head(8))
    module[0].requires_grad_(requires_grad=False)
    return module


def transposed() -> nn.Module:
    down, up = nn.Conv2d(3, 12, 3, 2, 1), nn.ConvTranspose2d(12, 12, 2, 2)
    return With(u_net, down, up, conv(3, 12), nn.Sequential(conv(24, 12), conv(12, CLASSES)))


TAKEN: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.Sequential(
        *(conv(3, 8, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), conv(8, 16)),
        *head(16),
    ),
    "group norm": lambda: nn.Sequential(conv(3, 8), nn.GroupNorm(2, 8), nn.GELU(), *head(8)),
    "in place": lambda: nn.Sequential(
        conv(3, 8, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), conv(8, 8), *head(8)
    ),
    "residual": lambda: With(residual, conv(3, 8), conv(8, 8), nn.Sequential(*head(8))),
    "depthwise": lambda: nn.Sequential(
        conv(3, 12), conv(12, 12, groups=12), nn.ReLU6(), nn.Conv2d(12, 16, 1), *head(16)
    ),
    "strides and dilation": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 5, 2, 2), nn.SELU(), conv(8, 8), nn.Conv2d(8, 8, 3, dilation=2), *head(8)
    ),
    "transposed, and maps as outputs": transposed,
    "upsampled": lambda: nn.Sequential(
        conv(3, 8), nn.Upsample(scale_factor=2, mode="bilinear"), nn.AvgPool2d(4), conv(8, 8), *head(8)
    ),
    "layer norm over channels": lambda: nn.Sequential(
        conv(3, 8),
        With(lambda x, norm: norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), nn.LayerNorm(8)),
        *head(8),
    ),
    "dropout of channels": lambda: nn.Sequential(
        conv(3, 8), nn.Dropout2d(0.3), nn.ReLU(), conv(8, 8), *head(8)
    ),
    "dropout of features": lambda: nn.Sequential(
        conv(3, 8), nn.ReLU(), conv(8, 8), *head(8)[:2], nn.Dropout(0.5), nn.Linear(8, CLASSES)
    ),
    "squeezed and excited": lambda: With(
        lambda x, first, gate, out: out(first(x) * gate(first(x).mean((2, 3), keepdim=True)).sigmoid()),
        *(conv(3, 8), nn.Conv2d(8, 8, 1), nn.Sequential(*head(8))),
    ),
    "tied": tied,
    "frozen": half_frozen,
    "one channel": lambda: With(
        lambda x, inner: inner(x[:, :1]), nn.Sequential(conv(1, 8), nn.ReLU(), conv(8, 8), *head(8))
    ),
    "flat images": lambda: With(
        lambda x, inner: inner(x.flatten(1).reshape(-1, 3, SIZE, SIZE)),
        nn.Sequential(conv(3, 20), nn.ReLU(), conv(20, 20), nn.ReLU(), *head(20)),
    ),
    "derivative of its own": lambda: With(
        lambda x, first, out: out(Scaled.apply(first(x)).mean((2, 3))),
        *(conv(3, 8), nn.Linear(8, CLASSES)),
    ),
    "spectral norm of another layer": lambda: nn.Sequential(
        conv(3, 8), nn.ReLU(), conv(8, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.utils.parametrizations.weight_norm(nn.Linear(8, CLASSES)),
    ),
}  # fmt: skip


def then(made: Callable[..., torch.Tensor]) -> Callable[[], nn.Module]:
    """Return a module that makes something of a convolution's outputs."""

    def forward(x: torch.Tensor, first: nn.Module, last: nn.Module) -> torch.Tensor:
        outputs: torch.Tensor = last(made(first(x)).flatten(2).mean(2))
        return outputs

    return lambda: With(forward, conv(3, 8), nn.Linear(8, CLASSES))


def in_place_of_a_reshape(x: torch.Tensor) -> torch.Tensor:
    x.reshape(len(x), -1).mul_(2)  # of `x`, or of a copy
    return x


def in_place_of_itself_or_a_copy(x: torch.Tensor) -> torch.Tensor:
    x.contiguous().mul_(2)
    return x


def in_place_of_a_flat_copy(x: torch.Tensor) -> torch.Tensor:
    x.ravel().mul_(2)
    return x.to(memory_format=torch.contiguous_format).add_(1) + x


def in_place_of_a_slice(x: torch.Tensor) -> torch.Tensor:
    x[:, 0] *= 2
    return x


class Hooked(torch.autograd.Function):
    """A derivative that looks at memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (1 + gradient.as_strided((1,), (1,)).sign())


def hooked(x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda gradient: gradient * (1 + gradient.as_strided((1,), (1,)).sign()))
    return x * 1


class Counting(nn.Module):
    """An attribute that is neither a param nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 8), *head(8)), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x) * (1 + 0.01 * self.calls)  # type: ignore[no-any-return]


class Behind(nn.Module):
    """A view of a weight that is not reached through its module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(conv(3, 8), nn.ReLU(), *head(8))
        self.kept = [self.inner[0].weight.detach().view(-1)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * (1 + self.kept[0].sum())  # type: ignore[no-any-return]


def by_size(x: torch.Tensor) -> torch.Tensor:
    return x.view(len(x), -1).view(x.shape) if len(x) == COUNT % BATCH else x


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "view": then(lambda x: x.view(len(x), -1).view(x.shape)),
    "view in a last, smaller batch": then(by_size),
    "dropout in memory's order": then(lambda x: functional.dropout(x, 0.3, training=True)),
    "noise in memory's order": then(lambda x: x + torch.randn_like(x)),
    "noise in place": then(lambda x: x * torch.empty_like(x).uniform_()),
    "in place of a reshape": then(in_place_of_a_reshape),
    "in place of itself, or a copy": then(in_place_of_itself_or_a_copy),
    "in place of a flat copy": then(in_place_of_a_flat_copy),
    "in place of a slice": then(in_place_of_a_slice),
    "places in memory": then(lambda x: x + x.as_strided(x.shape[:2], (8, 1))[:, :, None, None]),
    "a value in Python": then(lambda x: x * 2 if x.mean() > 0 else x),
    "a value in NumPy": then(lambda x: x * 2 if x.detach().numpy().mean() > 0 else x),
    "values in a list": then(lambda x: x * x.detach().flatten().tolist()[1]),
    "sizes that depend on values": then(lambda x: x * x[x > 0].mean()),
    "derivative that looks at memory": then(Hooked.apply),
    "hook that looks at memory": then(hooked),
    "python's random numbers": then(lambda x: x * random.random()),
    "an attribute that counts": Counting,
    "a view of a weight": Behind,
    "instance norm, which copies": lambda: nn.Sequential(
        conv(3, 8), nn.InstanceNorm2d(8), nn.ReLU(), conv(8, 8), nn.InstanceNorm2d(8), *head(8)
    ),
    "double precision": lambda: nn.Sequential(
        With(lambda x: x.double()), conv(3, 8), nn.ReLU(), *head(8)
    ).double(),
    "a weight that is computed": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(conv(3, 8)), nn.ReLU(), *head(8)
    ),
    "no image": lambda: nn.Sequential(
        nn.Flatten(2), nn.Conv1d(3, 8, 3), nn.Flatten(), nn.Linear(8 * (SIZE**2 - 2), CLASSES)
    ),
}


class Layouts:
    """The layouts that trainings had, in their order."""

    def __init__(self) -> None:
        self.taken: list[bool] = []
        self.allowed = True


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Layouts]:
    found, chosen = Layouts(), channels_last.ChannelsLast.of

    def of(*asked: Any) -> channels_last.ChannelsLast:
        layout = chosen(*asked) if found.allowed else channels_last.ChannelsLast()
        found.taken.append(bool(layout._weights))
        return layout

    monkeypatch.setattr(channels_last.ChannelsLast, "of", of)
    yield found


def task_of(model: Callable[[], nn.Module], loss: Any = cross_entropy) -> meadow.Task:
    def no_data(site: meadow.Site) -> meadow.ClientData:
        raise AssertionError("the tests give the data")

    return meadow.Task(model=model, loss=loss, client_data=no_data)


def trained(
    model: Callable[[], nn.Module],
    data: Any = DATA,
    *,
    loss: Any = cross_entropy,
    module: nn.Module | None = None,
    **settings: Any,
) -> dict[str, torch.Tensor]:
    """Train two epochs; returns the state_dict afterwards, and the mean loss."""
    random.seed(3)
    task = task_of(model, loss)
    module = build_module(task, 0) if module is None else module
    said = TrainingSettings(epochs=2, batch_size=BATCH, **{"learning_rate": 0.05, **settings})
    places = {name: param.data_ptr() for name, param in module.named_parameters()}
    _, means = train(task, module, data, said, client=1, device="cpu")
    assert places == {name: param.data_ptr() for name, param in module.named_parameters()}
    assert all(param.is_contiguous() for param in module.parameters())
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    return {**state, "loss": torch.tensor(means["loss"])}


def loss_for(name: str) -> Any:
    return mean_entropy if "maps" in name else cross_entropy


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.05},
    "momentum": {"learning_rate": 0.02, "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "learning_rate": 0.001},
    "all": {"proximal_mu": 0.1, "gradient_clip_norm": 0.5, "accumulation_steps": 2},
}


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("name", list(TAKEN))
def test_the_training_is_the_same_but_for_rounding(
    layouts: Layouts, name: str, optimizer: str
) -> None:
    """And the same bits every time."""
    settings = {**OPTIMIZERS[optimizer], "loss": loss_for(name)}
    ours, again = trained(TAKEN[name], **settings), trained(TAKEN[name], **settings)
    layouts.allowed = False
    plain = trained(TAKEN[name], **settings)
    assert layouts.taken == [True, True, False]
    for key, tensor in plain.items():
        torch.testing.assert_close(ours[key], tensor, rtol=2e-4, atol=2e-5)
        assert torch.equal(ours[key], again[key])


@pytest.mark.parametrize("name", list(REFUSED))
def test_who_could_notice_is_left_alone(layouts: Layouts, name: str) -> None:
    """To the bit."""
    ours = trained(REFUSED[name])
    layouts.allowed = False
    plain = trained(REFUSED[name])
    assert layouts.taken == [False, False]
    assert all(torch.equal(ours[key], tensor) for key, tensor in plain.items())


@pytest.mark.parametrize(
    "settings",
    [{"precision": "bf16"}, {"optimizer": "torch:RMSprop"}, {"seed": 1}],
    ids=["bf16", "torch's", "fp32"],
)
def test_only_what_is_known_is_laid_out(layouts: Layouts, settings: dict[str, Any]) -> None:
    trained(TAKEN["group norm"], **settings)
    assert layouts.taken == ([True] if "seed" in settings else [])


def test_data_without_a_known_shape_stay(layouts: Layouts) -> None:
    """A Dataset's items may have any shape; some rows of tensors are as good as tensors."""
    some = Subset(TensorDataset(*DATA), [5, 1, 9, 4, 2])
    trained(TAKEN["group norm"], some)
    trained(TAKEN["group norm"], [*zip(*DATA, strict=True)])
    assert layouts.taken == [True, False]


def test_a_module_is_traced_once_for_each_size(
    layouts: Layouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    proven = channels_last._is_proven

    def noted(module: Any, weights: Any, batch: Any, loss: Any) -> bool | None:
        sizes.append(len(batch[0]))
        return proven(module, weights, batch, loss)

    monkeypatch.setattr(channels_last, "_is_proven", noted)
    module = TAKEN["batch norm"]()
    for count in (18, 18, 17, 3, 16):
        trained(TAKEN["batch norm"], (INPUTS[:count], TARGETS[:count]), module=module)
    assert sizes == [2, 4, 1, 3]
    trained(TAKEN["batch norm"], module=module, loss=lambda o, t: cross_entropy(o, t) * 2)
    assert sizes == [2, 4, 1, 3, 2, 4]


def test_data_and_losses_of_all_kinds_stay_as_they_are(layouts: Layouts) -> None:
    """A loss may change its targets, and need not be hashable; useless data are refused as ever."""

    class Loss:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return False

        def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return cross_entropy(outputs, targets)

    def changing(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs, targets.clamp_(max=1))

    inputs, targets = INPUTS.clone(), TARGETS.clone()
    trained(TAKEN["group norm"], (inputs, targets), loss=changing)
    assert torch.equal(inputs, INPUTS) and torch.equal(targets, TARGETS)
    trained(TAKEN["group norm"], loss=Loss())
    assert layouts.taken == [True, False]
    for data in (([1], [2]), (INPUTS, TARGETS[1:]), (INPUTS[:0], TARGETS[:0])):
        with pytest.raises(DataError):
            trained(TAKEN["group norm"], data)


def test_data_that_fail_decide_nothing(layouts: Layouts) -> None:
    """They are an error, and the next data are trained on as if they had not been."""
    module = TAKEN["batch norm"]()
    with pytest.raises(IndexError):
        trained(TAKEN["batch norm"], (INPUTS, TARGETS + 100), module=module)
    trained(TAKEN["batch norm"], module=module)
    assert layouts.taken == [False, True]


def test_weights_are_laid_back_when_training_fails(layouts: Layouts) -> None:
    """With the values that they then have, in their own memory."""
    module = TAKEN["batch norm"]()
    weight = module[0].weight
    place, before = weight.data_ptr(), weight.detach().clone()
    with pytest.raises(DataError, match="learning_rate"):
        trained(TAKEN["batch norm"], module=module, learning_rate=1e30)
    assert layouts.taken == [True]
    assert weight.data_ptr() == place and weight.is_contiguous()
    assert not torch.equal(weight, before)


def test_a_round_goes_on_to_the_bit(layouts: Layouts, tmp_path: Path) -> None:
    """From a save in the middle, in another module, as if it had not been interrupted."""
    task = task_of(TAKEN["batch norm"])
    settings = TrainingSettings(epochs=2, batch_size=BATCH, momentum=0.9, learning_rate=0.05)
    saves = MidEpoch(folder=tmp_path / "saves", every_steps=1)
    whole, left = build_module(task, 0), build_module(task, 0)
    train(task, whole, DATA, settings, client=1, device="cpu")
    given: dict[str, Any] = {"client": 1, "device": "cpu", "saves": saves}
    train(task, left, DATA, settings, **given)
    later = build_module(task, 0)
    train(task, later, DATA, settings, **given, resume_at=saves.latest() - 1)
    assert layouts.taken == [True] * 3
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, left.state_dict()[name])
        assert torch.equal(tensor, later.state_dict()[name])


def test_smaller_pieces_are_not_laid_out(layouts: Layouts) -> None:
    """Once memory ran out, batches are cut into sizes that nobody has looked at."""
    seen: list[tuple[int, bool]] = []

    def watched(x: torch.Tensor, inner: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            seen.append((len(x), inner[0].weight.is_contiguous()))
        if len(x) == BATCH and len(seen) > 6:
            raise MemoryError
        return inner(x)  # type: ignore[no-any-return]

    inner = nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 8), *head(8))
    task = task_of(lambda: With(watched, inner))
    module, pieces = task.model(), MicroBatch()
    settings = TrainingSettings(batch_size=BATCH)
    train(task, module, DATA, settings, client=1, device="cpu", micro_batch=pieces)
    assert layouts.taken == [True] and pieces.examples_max == BATCH // 2
    failed = seen.index((BATCH, False), 5)
    assert all(is_plain for _, is_plain in seen[failed + 1 :] if _ <= BATCH // 2)
    assert module.layers[0][0].weight.is_contiguous()


def test_an_owner_decides_for_himself(layouts: Layouts) -> None:
    """Where [device] says how a module computes, that counts."""
    task = task_of(TAKEN["group norm"])
    uses = [DeviceUse(channels_last=said) for said in (False, True)]
    for use in (
        *uses,
        DeviceUse(checkpoint_activations=True),
        DeviceUse.of(DeviceConfig(), kind="none", device="cpu"),
    ):
        module = build_module(task, 0)
        settings = TrainingSettings(batch_size=BATCH)
        train(task, module, DATA, settings, client=1, device="cpu", use=use)
    assert layouts.taken == []
