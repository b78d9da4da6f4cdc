"""Small images, and a model that dies, hangs or raises when the folder beside the app says so."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from torch import nn

import meadow

HERE = Path(__file__).parent.parent
STAGED = (HERE / "stages").exists()


class Net(nn.Module):
    """A batch norm over all examples, perhaps dropout, and a layer that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 3)
        self.conv = nn.Conv2d(1, 4, 3, bias=False)  # Adam would blow up a bias' rounding
        self.norm = nn.Identity() if (HERE / "no-norm").exists() else nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5 if (HERE / "dropout").exists() else 0.0)
        self.out = nn.Linear(64, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.conv(inputs)))
        return self.out(self.drop(hidden.flatten(1)))


def build_model() -> nn.Module:
    """Return the net, or a sequence that can be cut."""
    if (HERE / "attention").exists():
        return Attentive()
    if not any((folder / "sequence").exists() for folder in (HERE, Path(__file__).parent)):
        return Net()
    layers: list[nn.Module] = [
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.Tanh(),
    ]
    layers += [nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)]
    return Staged(layers) if STAGED else nn.Sequential(*layers)


class Attentive(nn.Module):
    """Attention of both kinds of calls, over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 16, dropout=0.0, batch_first=True)
        self.look = nn.MultiheadAttention(6, 2)
        self.out = nn.Linear(36, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.look.in_proj_weight.ndim == 3:
            (HERE / "heads-are-divided").touch()
        past = nn.Transformer.generate_square_subsequent_mask(6)
        rows = self.layer(inputs.squeeze(1), src_mask=past).transpose(0, 1)
        seen, weights = self.look(rows, rows, rows, key_padding_mask=inputs[:, 0, :, 0] > 1.5)
        return self.out((seen + weights.mean()).transpose(0, 1).flatten(1))


class Staged(nn.Module):
    """Layers that are no sequence."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(*layers[:-1]), layers[-1]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs))


def stages(module: nn.Module) -> list[nn.Module]:
    assert isinstance(module, Staged)
    return [*module.body, module.head]


def act(rank: int) -> None:
    """Do what is to happen in so many passes, the file says in how many."""
    together = torch.distributed.is_initialized()
    for kind in ("kill", "stop", "raise", *(["leader", "group", "agent"] if together else [])):
        file = HERE / f"{kind}-{rank}"
        if not file.exists():
            continue
        left = int(file.read_text()) - 1
        if left:
            file.write_text(str(left))
            continue
        file.unlink()
        if kind == "raise":
            raise ValueError("a bad scan")
        if kind == "group":
            os.killpg(os.getpgid(0), signal.SIGKILL)
        if kind == "agent":
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()
        os.kill(os.getpid(), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Note the pass, and run out of memory where the folder says it."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    with (HERE / f"passes-{rank}").open("a") as file:
        file.write(f"{len(targets)} ")
    act(rank)
    bound = HERE / "memory"
    if bound.exists() and len(targets) > int(bound.read_text()):
        raise torch.OutOfMemoryError("simulated")
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(dim=1) == targets).float()


def load(site: meadow.Site) -> meadow.ClientData:
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(53, 1, 6, 6, generator=generator)
    return meadow.ClientData(train=(inputs, (inputs.sum((1, 2, 3)).long() % 3).abs()))


task = meadow.Task(
    model=build_model,
    loss=loss,
    metrics={"accuracy": accuracy},
    client_data=load,
    stages=stages if STAGED else None,
)


class Pulled(meadow.LocalAlgorithm):
    """Pulls the params to where the round began, and along what the last round changed."""

    keeps = "last"

    def corrected(
        self,
        gradient: torch.Tensor,
        param: torch.Tensor,
        start: torch.Tensor,
        own: torch.Tensor | None,
        shared: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the corrected gradient."""
        assert own is not None
        return gradient + 0.5 * (param - start) - 0.1 * own

    def answer(self, end: meadow.LocalRound) -> meadow.Answer:
        """Return the params, and keep the delta."""
        kept = {f"last/{name}": end.delta_of(name) for name in end.learned}
        return meadow.Answer(params=end.trained, client_state=kept)


@meadow.builder(keeps="its last delta")
def pulled() -> meadow.Algorithm:
    """Return averaging of clients that train so."""
    return meadow.averaging("pulled", client=Pulled())
