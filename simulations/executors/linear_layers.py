"""Linear layers of many clients, trained by plain SGD without ever making a gradient.

A batch of all clients goes through the module as one long batch; only the linear layers know that
its rows belong to different clients. Each makes its own SGD step while the loss is differentiated:

- A layer in the middle holds a weight per client, and its step is one matrix product added in
  place.
- The first layer sees the same samples again and again. It keeps no weight per client but, for
  each sample, what the steps so far add to the weight along that sample: with step size r, errors
  e and samples x, W = W0 - r sum e x', so W x = W0 x - r sum e (x' x). The products x' x of a
  client's samples with each other, and W0 x, are computed once a round; the change of all clients
  together is one matrix product at its end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["ClientLinear", "FirstLinear", "InnerLinear"]


class ClientLinear(nn.Module):
    """Takes the place of one `nn.Linear` in a module.

    A round begins with `begin`; a step is that of the first `active` clients.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.rate, self.active = 0.0, 0
        self._anchor = torch.zeros((), device=layer.weight.device, requires_grad=True)
        """Something to differentiate by, so that the layer is asked for its gradient."""
        self._bias: torch.Tensor | None = None
        self._active_bias: torch.Tensor | None = None

    def begin(self, clients: int, rate: float) -> None:
        """Begin a round of so many clients with the layer's own params."""
        self.rate = rate
        if self.layer.bias is not None:
            self._bias = self.layer.bias.detach().expand(clients, 1, -1).clone()
        self.activate(clients)

    def activate(self, clients: int) -> None:
        """Let the next steps be those of the first clients."""
        self.active = clients
        self._active_bias = None if self._bias is None else self._bias[:clients]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what each client's layer makes of its rows of the batch."""
        outputs: torch.Tensor = _Linear.apply(inputs, self._anchor, self)  # type: ignore[no-untyped-call]
        return outputs

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the layer's outputs: (clients, rows, features)."""
        raise NotImplementedError

    def step(self, inputs: torch.Tensor, errors: torch.Tensor, wanted: bool) -> torch.Tensor | None:
        """Make the SGD step, and return the inputs' gradient if it is `wanted`.

        Shapes: inputs and errors are (clients, rows, features).
        """
        raise NotImplementedError

    def change_of_weight(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of the weights' changes of the clients `good` (None: all)."""
        raise NotImplementedError

    def change_of_bias(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of the biases' changes, likewise."""
        assert self._bias is not None
        change = _of(self._bias, good)[:, 0] - self.layer.bias.detach()
        return weights.to(change.device) @ change

    def squares_of_weight(self) -> torch.Tensor:
        """Return the squared norm of each client's change of the weight."""
        raise NotImplementedError

    def squares_of_bias(self) -> torch.Tensor:
        """Return the squared norm of each client's change of the bias."""
        assert self._bias is not None
        return (self._bias[:, 0] - self.layer.bias.detach()).square().sum(1)

    def weight_of(self, row: int) -> torch.Tensor:
        """Return one client's weight."""
        raise NotImplementedError

    def bias_of(self, row: int) -> torch.Tensor:
        """Return one client's bias."""
        assert self._bias is not None
        return self._bias[row, 0]

    def _step_bias(self, errors: torch.Tensor) -> None:
        if self._active_bias is not None:
            self._active_bias.sub_(errors.sum(1, keepdim=True), alpha=self.rate)


class InnerLinear(ClientLinear):
    """A layer whose inputs change with the layers before it: a weight per client."""

    def begin(self, clients: int, rate: float) -> None:
        self._weight = self.layer.weight.detach().expand(clients, -1, -1).clone()
        self._change: torch.Tensor | None = None
        super().begin(clients, rate)

    def activate(self, clients: int) -> None:
        super().activate(clients)
        self._active_weight = self._weight[:clients]
        self._transposed = self._active_weight.mT

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        if self._active_bias is None:
            return torch.bmm(inputs, self._transposed)
        return torch.baddbmm(self._active_bias, inputs, self._transposed)

    def step(self, inputs: torch.Tensor, errors: torch.Tensor, wanted: bool) -> torch.Tensor | None:
        gradient = torch.bmm(errors, self._active_weight) if wanted else None
        self._active_weight.baddbmm_(errors.mT, inputs, alpha=-self.rate)
        self._step_bias(errors)
        return gradient

    def change_of_weight(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        change = _of(self._changes(), good)
        return (weights.to(change.device) @ change.flatten(1)).view(self.layer.weight.shape)

    def squares_of_weight(self) -> torch.Tensor:
        norms: torch.Tensor = torch.linalg.vector_norm(self._changes().flatten(1), dim=1)
        return norms.square()

    def _changes(self) -> torch.Tensor:
        """Return every client's change, once its training is over."""
        if self._change is None:
            self._change = self._weight - self.layer.weight.detach()
        return self._change

    def weight_of(self, row: int) -> torch.Tensor:
        return self._weight[row]


class FirstLinear(ClientLinear):
    """The layer that sees the samples themselves.

    In a single epoch whose samples lie in the order of its batches, only the samples before a
    batch have changed the weight; over several epochs, any of a client's may have.
    """

    def begin_once(self, samples: torch.Tensor) -> None:
        """Take the samples (clients, samples, features), in the order of their batches."""
        self._begin_with(samples)
        self._rows: torch.Tensor | None = None

    def begin_repeated(self, samples: torch.Tensor, places: torch.Tensor) -> None:
        """Take the samples likewise, and which of them are in which batch: (clients, steps,
        batch)."""
        self._begin_with(samples)
        starts = torch.arange(len(samples), device=places.device) * samples.shape[1]
        self._rows = (places + starts[:, None, None]).transpose(0, 1).flatten(1)
        self._products = torch.bmm(samples, samples.mT).flatten(0, 1)
        self._flat_outputs, self._flat_errors = (
            self._outputs.flatten(0, 1),
            self._errors.flatten(0, 1),
        )

    def _begin_with(self, samples: torch.Tensor) -> None:
        self._samples = samples
        self._outputs = samples @ self.layer.weight.detach().T
        self._errors = torch.zeros_like(self._outputs)

    def select(self, step: int, width: int) -> None:
        """Let the next step be that of each client's batch of this number."""
        self._low, self._high = step * width, (step + 1) * width
        if self._rows is not None:
            self._chosen = self._rows[step, : self.active * width]

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        errors = self._errors[: self.active]
        if self._rows is None:
            made = self._outputs[: self.active, self._low : self._high]
            made = made.clone() if self._active_bias is None else made + self._active_bias
            if self._low:
                known = torch.bmm(inputs, self._samples[: self.active, : self._low].mT)
                made.baddbmm_(known, errors[:, : self._low])
            return made
        made = self._flat_outputs.index_select(0, self._chosen)
        made = made.view(self.active, -1, made.shape[-1])
        if self._active_bias is not None:
            made += self._active_bias
        known = self._products.index_select(0, self._chosen)
        return made.baddbmm_(known.view(self.active, -1, known.shape[-1]), errors)

    def step(self, inputs: torch.Tensor, errors: torch.Tensor, wanted: bool) -> torch.Tensor | None:
        if self._rows is None:
            target = self._errors[: self.active, self._low : self._high]
            torch.mul(errors, -self.rate, out=target)
        else:
            self._flat_errors.index_add_(0, self._chosen, errors.flatten(0, 1), alpha=-self.rate)
        self._step_bias(errors)
        return None

    def change_of_weight(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        scaled = weights.to(self._errors.device)[:, None, None]
        errors = (_of(self._errors, good) * scaled).flatten(0, 1)
        return errors.T @ _of(self._samples, good).flatten(0, 1)

    def squares_of_weight(self) -> torch.Tensor:
        # |sum e x'|^2 = sum (e e')(x x'): the change itself never exists
        errors = torch.bmm(self._errors, self._errors.mT)
        samples = torch.bmm(self._samples, self._samples.mT)
        return (errors * samples).sum((1, 2), dtype=torch.float64).clamp(min=0)

    def weight_of(self, row: int) -> torch.Tensor:
        return self.layer.weight.detach() + self._errors[row].T @ self._samples[row]


def _of(rows: torch.Tensor, good: list[int] | None) -> torch.Tensor:
    return rows if good is None else rows[good]


class _Linear(torch.autograd.Function):
    """Asks a layer for its outputs, and tells it the errors that they made."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, anchor: torch.Tensor, layer: ClientLinear
    ) -> torch.Tensor:
        shaped = inputs.view(layer.active, -1, inputs.shape[-1])
        ctx.layer = layer
        ctx.save_for_backward(shaped)
        return layer.outputs(shaped).view(*inputs.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (inputs,) = ctx.saved_tensors
        errors = gradients[0].reshape(*inputs.shape[:2], -1)
        gradient = ctx.layer.step(inputs, errors, ctx.needs_input_grad[0])
        if gradient is not None:
            gradient = gradient.view(*gradients[0].shape[:-1], -1)
        return gradient, None, None
