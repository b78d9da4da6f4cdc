"""Small models with the habits that people have: what executors must all train alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

__all__ = ["FLAT", "SIZES", "ZOO", "Habit", "cross_entropy", "data_of", "of_two"]

FLAT, IMAGE, TOKENS, DOUBLE = "flat", "image", "tokens", "double"
CLASSES = 4
SIZES = (23, 5, 14, 10, 14, 20)
"""Unequal: with batches of 10 some clients have one step, some three, with a smaller last one."""
KINDS = {"flat": (16,), "image": (1, 4, 4), "tokens": (6,), "double": (16,)}


def data_of(index: int, kind: str, poked: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's samples; those of `poked` are others than usual."""
    generator = torch.Generator().manual_seed(100 + index + 1000 * (index == poked))
    shape = (SIZES[index], *KINDS[kind])
    if kind == TOKENS:
        inputs = torch.randint(0, 20, shape, generator=generator)
    else:
        inputs = torch.randn(shape, generator=generator)
    inputs = inputs.double() if kind == "double" else inputs
    return inputs, torch.randint(0, 4, (SIZES[index],), generator=generator)


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True, kw_only=True)
class Habit:
    """A model, what it takes, and whether the cohort may be trained as one tensor."""

    build: Callable[[], nn.Module]
    inputs: str = FLAT
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = cross_entropy
    metrics: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = field(
        default_factory=lambda: {"accuracy": lambda out, want: (out.argmax(1) == want).float()}
    )
    make_loss: Callable[[], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] | None = None
    """Makes a loss that holds something, anew for every run."""
    stacked: bool = True
    """Whether vmap can train it: others run one by one, with a reason."""


class Made(nn.Module):
    """Layers, and a function of (module, inputs) as forward."""

    def __init__(
        self, forward: Callable[[Any, torch.Tensor], torch.Tensor], **parts: nn.Module
    ) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._forward(self, inputs)


def mlp(*between: nn.Module, width: int = 12) -> nn.Module:
    return nn.Sequential(nn.Linear(16, width), *between, nn.Linear(width, CLASSES))


def of_two(forward: Callable[[Any, torch.Tensor], torch.Tensor], **more: nn.Module) -> nn.Module:
    """Return layers `a` (16 to 12) and `b` (12 to the classes) under a forward of their own."""
    return Made(forward, a=nn.Linear(16, 12), b=nn.Linear(12, CLASSES), **more)


# ---------------------------------------------------------------- orders of rows


def time_major(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Four positions a sample, with the positions first, as recurrent nets like it."""
    steps = x.view(len(x), 4, 4).transpose(0, 1).reshape(-1, 4)
    hidden = torch.tanh(m.a(steps)).view(4, len(x), -1).mean(0)
    return m.b(hidden)


def sorted_rows(m: Any, x: torch.Tensor) -> torch.Tensor:
    order = x[:, 0].argsort()
    hidden = torch.relu(m.a(x[order]))
    return m.b(hidden)[order.argsort()]


def flipped(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.b(torch.relu(m.a(x.flip(0)))).flip(0)


def rolled(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.b(torch.relu(m.a(x)).roll(1, 0))


def neighbour(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Each row is compared with the first one of the batch."""
    return m.b(torch.relu(m.a(x - x[:1])))


def centred(m: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = m.a(x)
    return m.b(torch.relu(hidden - hidden.mean(0)))


def by_size(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.b(torch.relu(m.a(x))) / x.shape[0]


def transposed(m: Any, x: torch.Tensor) -> torch.Tensor:
    """A product over the rows of the batch, and back."""
    gram = m.a(x) @ m.a(x).T
    return m.b(functional.softmax(gram, dim=-1) @ m.a(x))


def chunks(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([m.b(torch.relu(m.a(part))) for part in reversed(x.split(4))][::-1])


def gathered(m: Any, x: torch.Tensor) -> torch.Tensor:
    twice = m.a(torch.cat([x, x.flip(0)]))
    return m.b(torch.relu(twice[: len(x)] + twice[len(x) :].flip(0)))


# ---------------------------------------------------------------- params


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return result


class TiedInAList(nn.Module):
    """The weight is used through a plain list, which torch does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(16, 16), nn.Linear(16, CLASSES)
        self.others = [self.first.weight]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        result: torch.Tensor = self.out(torch.tanh(hidden @ self.others[0].T))
        return result


class Unused(nn.Module):
    """A head that no loss sees: its params must stay, weight decay or not."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, CLASSES), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.head(x)
        result: torch.Tensor = self.body(x)
        return result


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(16, 8).requires_grad_(False)
        self.head = nn.Linear(8, CLASSES)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.features(x) * self.scale)
        return result


class Functional(nn.Module):
    """Params without layers: a list, a dict, and a scale of a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList([torch.randn(12, 16) * 0.3, torch.randn(CLASSES, 12) * 0.3])
        self.more = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(12))})
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(functional.linear(x, self.layers[0], self.more["bias"]))
        return functional.linear(hidden, self.layers[1]) * self.scale


class Hooked(nn.Module):
    """The gradient of a param is scaled by a hook on the param."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 12), nn.Linear(12, CLASSES)
        self.a.weight.register_hook(lambda gradient: gradient * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.b(torch.relu(self.a(x)))
        return result


class Clamped(nn.Module):
    """The weight is kept within bounds in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 12), nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.a.weight.data.clamp_(-0.1, 0.1)
        result: torch.Tensor = self.b(torch.relu(self.a(x)))
        return result


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


def symmetric() -> nn.Module:
    square = nn.Linear(16, 16)
    parametrize.register_parametrization(square, "weight", Symmetric())
    return nn.Sequential(square, nn.Tanh(), nn.Linear(16, CLASSES))


def tensor_hook(m: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = m.a(x)
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient * 0.5)
    return m.b(torch.relu(hidden))


def shared_layer(m: Any, x: torch.Tensor) -> torch.Tensor:
    """One layer for the two halves of every sample."""
    halves = [torch.relu(m.part(piece)) for piece in x.chunk(2, dim=1)]
    return m.b(torch.cat(halves, dim=1))


def repeated(*inner: nn.Module) -> nn.Module:
    """The same module in three places, as of a network that is deep in params that it has once."""
    return nn.Sequential(nn.Linear(16, 12), *inner * 3, nn.Linear(12, CLASSES))


def repeated_convolution() -> nn.Module:
    inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.Tanh())
    first = nn.Conv2d(1, 4, 3, padding=1)
    return nn.Sequential(
        first, inner, inner, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES)
    )


def detached(m: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = torch.relu(m.a(x))
    with torch.no_grad():
        gate = torch.sigmoid(m.a(x))
    return m.b(hidden * gate + hidden.detach())


# ---------------------------------------------------------------- buffers and state


class Counting(nn.Module):
    """Buffers that count and average, in place and by assignment."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.a = nn.Linear(16, CLASSES)
        self.in_place = in_place
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.in_place:
            self.seen += 1
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        elif self.training:
            self.seen = self.seen + 1
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        result: torch.Tensor = self.a(x - self.mean)
        return result


class PlainState(nn.Module):
    """A running mean that is no buffer: a site's training must not see another's."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, CLASSES)
        self.mean = torch.zeros(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        result: torch.Tensor = self.a(x - self.mean)
        return result


class Calls(nn.Module):
    """A number in Python decides what a layer does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, CLASSES), nn.Linear(16, CLASSES)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        result: torch.Tensor = self.a(x) if self.calls % 2 else self.b(x) * 0.5
        return result


class Remembers(nn.Module):
    """A list in Python grows with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, CLASSES)
        self.past: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.past.append(1.0)
        result: torch.Tensor = self.a(x) / (1 + 0.1 * len(self.past))
        return result


class Shortcut(nn.Module):
    """Two layers that hand something over in a list which both hold, as the halves of a U-Net do."""

    def __init__(self, *, clears: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 12), nn.Linear(12, CLASSES)
        self.a.kept = self.b.kept = []  # type: ignore[assignment]
        self.clears = clears

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.clears:  # what the step before has left
            self.a.kept.clear()  # type: ignore[operator]
        self.a.kept.append(x.mean(1, keepdim=True))  # type: ignore[operator]
        h = torch.relu(self.a(x))
        shortcut = self.b.kept.pop() if self.clears else self.b.kept[0]  # type: ignore[operator,index]
        result: torch.Tensor = self.b(h) + shortcut
        return result


class Temperature:
    """An object of one's own that counts."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return x / (1 + 0.1 * self.steps)


class Annealed(nn.Module):
    """What is no module decides what a layer does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.temperature = nn.Linear(16, CLASSES), Temperature()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.temperature(self.a(x)) if self.training else self.a(x)


class OwnModes(nn.Module):
    """What `train` and `eval` set besides decides what a layer does; at first it is not there, or is what
    evaluation needs."""

    def __init__(self, *between: nn.Module, begun: bool) -> None:
        super().__init__()
        self.a, self.between, self.b = nn.Linear(16, 12), nn.Sequential(*between), nn.Linear(12, 4)
        if begun:
            self.learning = False

    def train(self, mode: bool = True) -> OwnModes:
        self.learning = mode
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.between(self.a(x)))
        made: torch.Tensor = self.b(2 * hidden if self.learning else hidden)
        return made


class Weighted(nn.Module):
    """A loss that keeps how large it was, in a buffer or an attribute."""

    def __init__(self, *, buffer: bool) -> None:
        super().__init__()
        if buffer:
            self.register_buffer("usual", torch.ones(()))
        else:
            self.usual = torch.ones(())

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = cross_entropy(outputs, targets)
        if torch.is_grad_enabled():
            self.usual.mul_(0.9).add_(0.1 * losses.detach().mean())
        return losses / self.usual


def weighted_in_a_function() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    weighted = Weighted(buffer=True)
    return lambda outputs, targets: weighted(outputs, targets) * 0.5


class Warmed:
    """A loss that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return cross_entropy(outputs, targets) * min(1.0, 0.1 * self.calls)


class FrozenNorm(nn.Module):
    """A batch norm that stays in evaluation mode, as fine-tuning does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(16, 12), nn.BatchNorm1d(12), nn.Linear(12, CLASSES)

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.b(torch.relu(self.norm(self.a(x))))
        return result


def image_net(norm: Callable[[int], nn.Module], *, bias: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=bias), norm(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def two_convolutions(*pool: int) -> nn.Module:
    size = 16 if pool else 1
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(*(pool or (2,))),
        nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(*(pool or (2,))),
        nn.Flatten(), nn.Linear(8 * size, CLASSES),
    )  # fmt: skip


class Turned(nn.Module):
    """A buffer of complex numbers."""

    turn: torch.Tensor

    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 12), nn.Linear(12, CLASSES)
        turn = torch.polar(torch.ones(6), torch.arange(6.0))
        self.register_buffer("turn", turn, persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(self.a(x.flatten(1)).unflatten(1, (6, 2)))
        return self.b(torch.view_as_real(pairs * self.turn).flatten(1))  # type: ignore[no-any-return]


class ResidualCnn(nn.Module):
    """A block whose short way is a convolution of every second pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.down = nn.Conv2d(4, 8, 3, 2, 1, bias=False)
        self.short = nn.Conv2d(4, 8, 1, 2)
        self.norms = nn.ModuleList([nn.GroupNorm(2, 4), nn.GroupNorm(2, 8)])
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norms[0](self.first(x)))
        x = torch.relu(self.norms[1](self.down(x)) + self.short(x))
        return self.out(x.mean((2, 3)))  # type: ignore[no-any-return]


# ---------------------------------------------------------------- random numbers


def random_like(draw: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], nn.Module]:
    """Return a model whose hidden values are multiplied or shifted by what `draw` makes."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(m.a(x))
        return m.b(draw(hidden) if m.training else hidden)

    return lambda: of_two(forward)


class Variational(nn.Module):
    """The reparametrization of a variational autoencoder, before a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(16, 6), nn.Linear(16, 6)
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spread = torch.exp(0.5 * self.spread(x))
        latent = self.mean(x) + spread * torch.randn_like(spread) * self.training
        result: torch.Tensor = self.out(latent)
        return result


def layer_drop(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Python's own random numbers decide whether a layer is left out."""
    hidden = torch.relu(m.a(x))
    if m.training and random.random() < 0.5:
        hidden = hidden * 0.5
    return m.b(hidden)


def noisy_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs + 0.1 * torch.randn_like(outputs), targets)


# ---------------------------------------------------------------- sequences


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.cell = kind(6, 8, batch_first=True, **options)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.cell(self.embed(x))
        result: torch.Tensor = self.out(hidden[:, -1])
        return result


class Cells(nn.Module):
    """A loop over a cell, as papers write it."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(20, 6), kind(6, 8)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for word in self.embed(x).unbind(1):
            state = self.cell(word, state)
        result: torch.Tensor = self.out(state[0] if isinstance(state, tuple) else state)
        return result


class Attention(nn.Module):
    def __init__(self, *, dropout: float, norm_first: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.register_buffer("places", torch.linspace(0, 1, 6)[:, None].repeat(1, 8))
        self.layer = nn.TransformerEncoderLayer(
            8, 2, 16, dropout=dropout, batch_first=True, norm_first=norm_first
        )
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(self.embed(x) + self.places[: x.shape[1]])
        result: torch.Tensor = self.out(hidden.mean(1))
        return result


class Causal(nn.Module):
    """Masked attention by hand, with a head for every position's sum."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(20, 8), nn.Linear(8, 24)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.embed(x)).chunk(3, dim=-1)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        made = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        result: torch.Tensor = self.out(made.sum(1))
        return result


class BagOfWords(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8, **options), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.embed(x).mean(1))
        return result


class EmbeddingBag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.EmbeddingBag(20, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.embed(x))
        return result


class Mixer(nn.Module):
    """Linear layers over both axes of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.across, self.along = nn.Linear(4, 4), nn.Linear(4, 4)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = x.view(-1, 4, 4)
        table = table + torch.relu(self.across(table.transpose(1, 2))).transpose(1, 2)
        table = table + torch.relu(self.along(table))
        result: torch.Tensor = self.out(table.flatten(1))
        return result


# ---------------------------------------------------------------- control flow and dtypes


def if_large(m: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = m.a(x)
    if hidden.abs().mean() > 0.3:
        hidden = hidden * 0.5
    return m.b(torch.relu(hidden))


def until_small(m: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = m.a(x)
    while hidden.detach().abs().max() > 1:
        hidden = hidden * 0.7
    return m.b(torch.tanh(hidden))


def gated(m: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = m.a(x)
    return m.b(torch.where(hidden > 0, hidden, 0.1 * hidden))


def routed(m: Any, x: torch.Tensor) -> torch.Tensor:
    """A mixture of two experts, each for its own rows of the batch."""
    chosen = x[:, 0] > 0
    made = x.new_zeros(len(x), CLASSES)
    made[chosen] = m.b(torch.relu(m.a(x[chosen])))
    made[~chosen] = m.b(torch.tanh(m.a(x[~chosen])))
    return made


def odd_batches(m: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = m.a(x)
    return m.b(torch.relu(hidden)) if len(x) % 2 else m.b(torch.tanh(hidden))


class HalfWay(nn.Module):
    """Float64 in the middle of a model of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 12).double(), nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.b(torch.tanh(self.a(x.double())).float())
        return result


class Squared(torch.autograd.Function):
    """A function with a derivative of its own, as papers on binary nets have it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * (x.abs() < 1)


class Reversed(torch.autograd.Function):
    """Forward nothing, backward the opposite: as adversarial training has it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return -0.5 * gradients[0]


class Averaged(torch.autograd.Function):
    """A gradient that is divided by the mean over its batch."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] / (1 + gradients[0].abs().sum())


def switched_off(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        hidden = torch.relu(m.a(x))
    return m.b(hidden)


def averaged_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(Averaged.apply(outputs), targets)


def mixing_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Examples are weighed by how hard they are beside the others of their batch."""
    losses = cross_entropy(outputs, targets)
    return losses * torch.softmax(losses.detach(), dim=0) * len(losses)


def share_above(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A metric that looks across its batch."""
    best = outputs.max(1).values
    return (best > best.mean()).float()


_noise: Callable[[torch.Tensor], torch.Tensor] = lambda h: h + 0.1 * torch.randn_like(h)

ZOO: dict[str, Habit] = {
    # plain
    "logistic regression": Habit(build=lambda: nn.Linear(16, CLASSES)),
    "mlp": Habit(build=lambda: mlp(nn.ReLU())),
    "deep mlp": Habit(build=lambda: mlp(nn.Tanh(), nn.Linear(12, 12), nn.GELU())),
    "written mlp": Habit(build=lambda: of_two(lambda m, x: m.b(torch.relu(m.a(x.flatten(1)))))),
    "residual mlp": Habit(
        build=lambda: Made(
            lambda m, x: m.b(x + torch.relu(m.a(x))), a=nn.Linear(16, 16), b=nn.Linear(16, CLASSES)
        )
    ),
    "in place": Habit(build=lambda: mlp(nn.ReLU(inplace=True))),
    "small cnn": Habit(build=lambda: image_net(lambda _: nn.Identity()), inputs=IMAGE),
    "two convolutions": Habit(build=two_convolutions, inputs=IMAGE),
    "overlapping pools": Habit(build=lambda: two_convolutions(3, 1, 1), inputs=IMAGE),
    "residual cnn": Habit(build=ResidualCnn, inputs=IMAGE),
    # orders of rows
    "time major": Habit(
        build=lambda: Made(time_major, a=nn.Linear(4, 12), b=nn.Linear(12, CLASSES))
    ),
    "sorted rows": Habit(build=lambda: of_two(sorted_rows)),
    "flipped rows": Habit(build=lambda: of_two(flipped)),
    "rolled rows": Habit(build=lambda: of_two(rolled)),
    "beside the first row": Habit(build=lambda: of_two(neighbour)),
    "centred over the batch": Habit(build=lambda: of_two(centred)),
    "divided by the batch's size": Habit(build=lambda: of_two(by_size)),
    "attention over the batch": Habit(
        build=lambda: Made(transposed, a=nn.Linear(16, 12), b=nn.Linear(12, CLASSES))
    ),
    "chunks of the batch": Habit(build=lambda: of_two(chunks)),
    "rows twice": Habit(build=lambda: of_two(gathered)),
    "mixer": Habit(build=Mixer),
    # params
    "tied": Habit(build=Tied),
    "tied in a list": Habit(build=TiedInAList, stacked=False),
    "unused": Habit(build=Unused),
    "frozen": Habit(build=Frozen),
    "functional": Habit(build=Functional),
    "hook on a param": Habit(build=Hooked, stacked=False),
    "hook on a tensor": Habit(build=lambda: of_two(tensor_hook)),
    "clamped": Habit(build=Clamped),
    "parametrized": Habit(build=symmetric),
    "weight norm": Habit(
        build=lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Linear(16, 12)), nn.ReLU(), nn.Linear(12, CLASSES)
        )
    ),
    "spectral norm": Habit(
        build=lambda: nn.Sequential(
            parametrizations.spectral_norm(nn.Linear(16, 12)), nn.ReLU(), nn.Linear(12, CLASSES)
        ),
        stacked=False,
    ),
    "orthogonal": Habit(
        build=lambda: nn.Sequential(
            parametrizations.orthogonal(nn.Linear(16, 16), "weight", "householder"),
            nn.Tanh(),
            nn.Linear(16, CLASSES),
        ),
    ),
    "one layer twice": Habit(
        build=lambda: Made(shared_layer, part=nn.Linear(8, 6), b=nn.Linear(12, CLASSES))
    ),
    "one module under two names": Habit(build=lambda: repeated(nn.Linear(12, 12), nn.Tanh())),
    "one block under two names": Habit(
        build=lambda: repeated(nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.Tanh()))
    ),
    "one convolution under two names": Habit(build=repeated_convolution, inputs=IMAGE),
    "detached": Habit(build=lambda: of_two(detached)),
    # norms and buffers
    "batch norm": Habit(build=lambda: image_net(nn.BatchNorm2d, bias=False), inputs=IMAGE),
    "batch norm without statistics": Habit(
        build=lambda: image_net(lambda n: nn.BatchNorm2d(n, track_running_stats=False), bias=False),
        inputs=IMAGE,
    ),
    "batch norm over all steps": Habit(
        build=lambda: image_net(lambda n: nn.BatchNorm2d(n, momentum=None), bias=False),
        inputs=IMAGE,
        stacked=False,
    ),
    "batch norm that is frozen": Habit(build=FrozenNorm),
    "group norm": Habit(build=lambda: image_net(lambda n: nn.GroupNorm(2, n)), inputs=IMAGE),
    "instance norm": Habit(
        build=lambda: image_net(lambda n: nn.InstanceNorm2d(n, affine=True), bias=False),
        inputs=IMAGE,
    ),
    "instance norm with statistics": Habit(
        build=lambda: image_net(
            lambda n: nn.InstanceNorm2d(n, track_running_stats=True), bias=False
        ),
        inputs=IMAGE,
    ),
    "layer norm": Habit(build=lambda: mlp(nn.LayerNorm(12), nn.ReLU())),
    "rms norm": Habit(build=lambda: mlp(nn.RMSNorm(12), nn.ReLU())),
    "local response norm": Habit(
        build=lambda: image_net(lambda n: nn.LocalResponseNorm(2)), inputs=IMAGE
    ),
    "complex buffer": Habit(build=lambda: Turned(persistent=True), stacked=False),
    "complex buffer that is not sent": Habit(build=lambda: Turned(persistent=False)),
    "buffers in place": Habit(build=lambda: Counting(in_place=True)),
    "buffers by assignment": Habit(build=lambda: Counting(in_place=False)),
    "state that is no buffer": Habit(build=PlainState, stacked=False),
    "a number in Python": Habit(build=Calls, stacked=False),
    "a list in Python": Habit(build=Remembers, stacked=False),
    "a list of two modules": Habit(build=lambda: Shortcut(clears=True)),
    "a list of two modules, not emptied": Habit(
        build=lambda: Shortcut(clears=False), stacked=False
    ),
    "an object that counts": Habit(build=Annealed, stacked=False),
    "modes of one's own": Habit(build=lambda: OwnModes(begun=True)),
    "modes of one's own, set by train": Habit(build=lambda: OwnModes(begun=False)),
    "modes of one's own, with a norm": Habit(
        build=lambda: OwnModes(nn.BatchNorm1d(12), begun=True)
    ),
    # random numbers
    "dropout": Habit(build=lambda: mlp(nn.ReLU(), nn.Dropout(0.4))),
    "dropout of features": Habit(
        build=lambda: image_net(lambda _: nn.Dropout2d(0.3)), inputs=IMAGE
    ),
    "alpha dropout": Habit(build=lambda: mlp(nn.SELU(), nn.AlphaDropout(0.3))),
    "feature alpha dropout": Habit(
        build=lambda: image_net(lambda _: nn.FeatureAlphaDropout(0.3)), inputs=IMAGE
    ),
    "rrelu": Habit(build=lambda: mlp(nn.RReLU()), stacked=False),
    "randn_like": Habit(build=random_like(_noise)),
    "rand": Habit(build=random_like(lambda h: h * torch.rand(h.shape[1]))),
    "randn of the batch": Habit(build=random_like(lambda h: h + torch.randn(len(h), 1))),
    "randint": Habit(build=random_like(lambda h: h * torch.randint(1, 3, (h.shape[1],)))),
    "randperm": Habit(build=random_like(lambda h: h[:, torch.randperm(h.shape[1])])),
    "bernoulli": Habit(build=random_like(lambda h: h * torch.bernoulli(torch.sigmoid(h.detach())))),
    "noise in place": Habit(build=random_like(lambda h: h * torch.empty_like(h).uniform_(0.5, 1))),
    "noise into a new tensor": Habit(
        build=random_like(lambda h: h * torch.empty(h.shape[1]).uniform_(0.5, 1)), stacked=False
    ),
    "normal": Habit(build=random_like(lambda h: torch.normal(h.detach(), 0.1) + h)),
    "gumbel softmax": Habit(build=random_like(lambda h: functional.gumbel_softmax(h) * h)),
    "multinomial": Habit(
        build=random_like(lambda h: h * torch.multinomial(torch.sigmoid(h.detach()), 12) / 12)
    ),
    "poisson": Habit(build=random_like(lambda h: h * torch.poisson(h.detach().abs() + 1))),
    "exponential": Habit(build=random_like(lambda h: h * torch.empty_like(h).exponential_())),
    "a normal distribution": Habit(
        build=random_like(lambda h: torch.distributions.Normal(h, 0.1).rsample()), stacked=False
    ),
    "a gamma distribution": Habit(
        build=random_like(lambda h: h * torch.distributions.Gamma(h.detach() + 1, 5.0).rsample())
    ),
    "two kinds of noise": Habit(build=random_like(lambda h: _noise(functional.dropout(h, 0.3)))),
    "noise of transposed values": Habit(
        build=random_like(lambda h: (h.T + 0.1 * torch.randn_like(h.T)).T)
    ),
    "variational": Habit(build=Variational),
    "layer drop": Habit(build=lambda: of_two(layer_drop), stacked=False),
    "noise in the loss": Habit(build=lambda: mlp(nn.ReLU()), loss=noisy_loss),
    "noise for all rows": Habit(build=lambda: of_two(lambda m, x: m.b(m.a(x) + torch.rand(12)))),
    # sequences
    "lstm": Habit(build=lambda: Recurrent(nn.LSTM), inputs=TOKENS),
    "two layers of lstm": Habit(
        build=lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.3), inputs=TOKENS
    ),
    "gru": Habit(build=lambda: Recurrent(nn.GRU), inputs=TOKENS),
    "rnn": Habit(build=lambda: Recurrent(nn.RNN), inputs=TOKENS),
    "lstm cells": Habit(build=lambda: Cells(nn.LSTMCell), inputs=TOKENS),
    "gru cells": Habit(build=lambda: Cells(nn.GRUCell), inputs=TOKENS),
    "attention": Habit(build=lambda: Attention(dropout=0.0), inputs=TOKENS),
    "attention with dropout": Habit(build=lambda: Attention(dropout=0.3), inputs=TOKENS),
    "attention, norm first": Habit(
        build=lambda: Attention(dropout=0.1, norm_first=True), inputs=TOKENS
    ),
    "causal attention": Habit(build=Causal, inputs=TOKENS),
    "bag of words": Habit(build=BagOfWords, inputs=TOKENS),
    "bag of words with padding": Habit(build=lambda: BagOfWords(padding_idx=0), inputs=TOKENS),
    "embedding bag": Habit(build=EmbeddingBag, inputs=TOKENS),
    # control flow and dtypes
    "if": Habit(build=lambda: of_two(if_large), stacked=False),
    "while": Habit(build=lambda: of_two(until_small), stacked=False),
    "where": Habit(build=lambda: of_two(gated)),
    "experts": Habit(build=lambda: of_two(routed), stacked=False),
    "by the batch's size": Habit(build=lambda: of_two(odd_batches)),
    "two dtypes": Habit(build=HalfWay),
    "float64": Habit(build=lambda: mlp(nn.ReLU()).double(), inputs=DOUBLE),
    "a function of one's own": Habit(
        build=lambda: of_two(lambda m, x: m.b(Squared.apply(m.a(x)))), stacked=False
    ),
    "a gradient that is reversed": Habit(
        build=lambda: of_two(lambda m, x: m.b(torch.relu(Reversed.apply(m.a(x)))))
    ),
    "a gradient over the batch": Habit(
        build=lambda: of_two(lambda m, x: m.b(torch.relu(Averaged.apply(m.a(x)))))
    ),
    "gradients switched off": Habit(build=lambda: of_two(switched_off)),
    # losses and metrics
    "a loss with a gradient over the batch": Habit(
        build=lambda: mlp(nn.ReLU()), loss=averaged_loss
    ),
    "a loss with a buffer": Habit(
        build=lambda: mlp(nn.ReLU()), make_loss=lambda: Weighted(buffer=True), stacked=False
    ),
    "a loss with a tensor": Habit(
        build=lambda: mlp(nn.ReLU()), make_loss=lambda: Weighted(buffer=False), stacked=False
    ),
    "a loss with a buffer, in a function": Habit(
        build=lambda: mlp(nn.ReLU()), make_loss=weighted_in_a_function, stacked=False
    ),
    "a loss that counts": Habit(build=lambda: mlp(nn.ReLU()), make_loss=Warmed, stacked=False),
    "a loss that looks across": Habit(build=lambda: mlp(nn.ReLU()), loss=mixing_loss),
    "a metric that looks across": Habit(
        build=lambda: mlp(nn.ReLU()), metrics={"above": share_above}
    ),
}
