"""Linear layers of any network that keep no weight per client: what a client's steps add is of low rank.

After some steps with samples x and errors e, a client's weight is a W0 + sum c e x', with numbers a and c
that are the same for all (`linear_descent`). With a few dozen samples a client, these are a small
part of a large weight: W0 x is one product for the whole cohort, the rest two narrow ones, and the
gradient of the weight, its largest part of memory, is never made.

It is taken where the forward pass is proven to call the layer once and to use its weight for nothing
else, and where the products are fewer than the weight.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn

from ....errors import DataError
from .first_layers import FirstOnce
from .linear_descent import LinearDescent

__all__ = ["LowRankLinear", "LowRankWeight", "layers_called_once", "saves", "with_low_rank"]

SMALLER = 4
"""So many times fewer must be what is kept of each sample than what is kept of a weight."""


class LowRankLinear(nn.Module):
    """One client's layer; samples and errors so far are its buffers, set from outside.

    Attributes:
        seen: what the forward pass was given.
    """

    before: torch.Tensor
    samples: torch.Tensor
    errors: torch.Tensor
    kept: torch.Tensor
    tap: torch.Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.bias = layer.bias
        self.register_buffer("before", layer.weight.detach())
        for name in ("samples", "errors", "kept", "tap"):
            self.register_buffer(name, layer.weight.new_empty(0))
        self.seen: torch.Tensor | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the layer's outputs; the gradient of `tap`, which is zero, are their errors."""
        if inputs.ndim != 2:
            raise DataError(f"a sample has {inputs.ndim - 1} dimensions where 1 is known")
        self.seen = inputs
        outputs = nn.functional.linear(inputs, self.before) * self.kept
        outputs = outputs + (inputs @ self.samples.T) @ self.errors + self.tap
        return outputs if self.bias is None else outputs + self.bias


class LowRankWeight(FirstOnce):
    """The weight of a `LowRankLinear` over a round: every client's samples and errors, step after step."""

    def __init__(self, layer: nn.Linear) -> None:
        made = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
        made.weight = layer.weight
        super().__init__(made)

    def begin_rows(self, clients: int, descent: LinearDescent, rows: int) -> None:
        """Begin a round of so many clients, whose steps have so many rows together."""
        self.begin(clients, descent)
        outputs, inputs = self.before.shape
        self._all_samples = self.before.new_zeros(clients, rows, inputs)
        self._all_errors = self.before.new_zeros(clients, rows, outputs)
        self._starts = [0]

    def history(self, clients: int) -> dict[str, torch.Tensor]:
        """Return what the next step of the first `clients` needs of those before.

        Shapes: samples (clients, rows, inputs), errors (clients, rows, outputs), kept (clients,).
        """
        now, factors = self._made[-1], self.before.new_zeros(self._all_errors.shape[1])
        for number, term in enumerate(now.terms):
            factors[self._starts[number] : self._starts[number + 1]] = term
        return {
            "samples": self._all_samples[:clients],
            "errors": self._all_errors[:clients] * factors[:, None],
            "kept": self.before.new_full((clients,), now.start),
        }

    def add(self, samples: torch.Tensor, errors: torch.Tensor) -> None:
        """Make a step of the first clients: (clients, batch, features) each."""
        clients, width = samples.shape[:2]
        start = self._starts[-1]
        self._starts.append(start + width)
        kept = [each[:clients, start : start + width] for each in self._memory]
        for each, values in zip(kept, (samples, errors), strict=True):
            each.copy_(values)
        self.step(kept[0], kept[1], False)

    @property
    def _memory(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._all_samples, self._all_errors


def layers_called_once(
    graph: torch.fx.GraphModule, module: nn.Module, trained: Mapping[str, torch.Tensor]
) -> dict[str, nn.Linear]:
    """Return the linear layers whose weight is used for nothing but one call, by their place in the
    module.

    `graph` is the module's proven forward pass, `trained` are the params that it trains.
    """
    found: dict[str, nn.Linear] = {}
    nodes = list(graph.graph.nodes)
    calls = [graph.get_submodule(str(n.target)) for n in nodes if n.op == "call_module"]
    read = {str(node.target) for node in nodes if node.op == "get_attr"}
    places = [place.data_ptr() for place in trained.values()]
    for name, layer in module.named_modules(remove_duplicate=False):
        if type(layer) is not nn.Linear or sum(each is layer for each in calls) != 1:
            continue
        owners = [n for n, each in module.named_modules(remove_duplicate=False) if each is layer]
        is_read = any(each.rpartition(".")[2] in ("weight", "bias") for each in read)
        alone = len(owners) == 1 and places.count(layer.weight.data_ptr()) == 1
        sharing = [
            n
            for n, each in module.named_parameters(remove_duplicate=False)
            if each.data_ptr() == layer.weight.data_ptr()
        ]
        if alone and len(sharing) == 1 and not is_read and f"{name}.weight" in trained:
            found[name] = layer
    return found


def saves(layer: nn.Linear, rows: int) -> bool:
    """Return whether a client's samples, so many rows, are much less than a weight of its own."""
    width = layer.in_features + layer.out_features
    return SMALLER * rows * width <= layer.in_features * layer.out_features


def with_low_rank(module: nn.Module, places: Mapping[str, nn.Linear]) -> nn.Module:
    """Return a copy of a module, which shares its params and buffers, with these layers replaced."""
    shared = [*module.parameters(), *module.buffers()]
    made = copy.deepcopy(module, {id(each): each for each in shared})
    for name, layer in places.items():
        parent, _, child = name.rpartition(".")
        setattr(made.get_submodule(parent), child, LowRankLinear(layer))
    return made
