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
        self._bias = torch.empty(0)

    def begin(self, clients: int, rate: float) -> None:
        """Begin a round of so many clients with the layer's own params."""
        self.rate, self.active = rate, clients
        if self.layer.bias is not None:
            self._bias = self.layer.bias.detach().expand(clients, -1).clone()

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
        return weights.to(self._bias.device) @ (_of(self._bias, good) - self.layer.bias.detach())

    def weight_of(self, row: int) -> torch.Tensor:
        """Return one client's weight."""
        raise NotImplementedError

    def bias_of(self, row: int) -> torch.Tensor:
        """Return one client's bias."""
        return self._bias[row]

    def _step_bias(self, errors: torch.Tensor) -> None:
        if self.layer.bias is not None:
            self._bias[: self.active].sub_(errors.sum(1), alpha=self.rate)

    def _biases(self) -> torch.Tensor:
        return self._bias[: self.active].unsqueeze(1)


class InnerLinear(ClientLinear):
    """A layer whose inputs change with the layers before it: a weight per client."""

    def begin(self, clients: int, rate: float) -> None:
        super().begin(clients, rate)
        self._weight = self.layer.weight.detach().expand(clients, -1, -1).clone()

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        weight = self._weight[: self.active].transpose(1, 2)
        if self.layer.bias is None:
            return torch.bmm(inputs, weight)
        return torch.baddbmm(self._biases(), inputs, weight)

    def step(self, inputs: torch.Tensor, errors: torch.Tensor, wanted: bool) -> torch.Tensor | None:
        weight = self._weight[: self.active]
        gradient = torch.bmm(errors, weight) if wanted else None
        weight.baddbmm_(errors.transpose(1, 2), inputs, alpha=-self.rate)
        self._step_bias(errors)
        return gradient

    def change_of_weight(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        change = _of(self._weight, good) - self.layer.weight.detach()
        return (weights.to(change.device) @ change.flatten(1)).view(self.layer.weight.shape)

    def weight_of(self, row: int) -> torch.Tensor:
        return self._weight[row]


class FirstLinear(ClientLinear):
    """The layer that sees the samples themselves.

    Where a step's samples lie one after the other, as in a first epoch whose samples were laid in
    the order of its batches, only the samples before them have changed the weight.
    """

    def begin_with(self, samples: torch.Tensor, *, repeated: bool) -> None:
        """Take the samples of the clients, `repeated` if they come several times in a round.

        Shapes: samples (clients, most samples, features).
        """
        self._samples = samples
        self._outputs = samples @ self.layer.weight.detach().T
        self._errors = torch.zeros_like(self._outputs)
        if repeated:
            self._products = torch.bmm(samples, samples.transpose(1, 2))

    def select_next(self, low: int, high: int) -> None:
        """Let the next step be that of the samples `low` to `high` of the active clients."""
        self._rows: torch.Tensor | None = None
        self._low, self._high = low, high

    def select_rows(self, places: torch.Tensor) -> None:
        """Let the next step be that of these samples (active, batch) of the active clients."""
        starts = torch.arange(self.active, device=places.device) * self._samples.shape[1]
        self._rows = (places + starts[:, None]).flatten()

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        errors = self._errors[: self.active]
        if self._rows is None:
            made = self._outputs[: self.active, self._low : self._high]
            made = made + self._biases() if self.layer.bias is not None else made.clone()
            if self._low:
                known = torch.bmm(inputs, self._samples[: self.active, : self._low].mT)
                made.baddbmm_(known, errors[:, : self._low])
            return made
        shape = (self.active, -1)
        made = self._outputs.flatten(0, 1).index_select(0, self._rows)
        made = made.view(*shape, made.shape[-1])
        if self.layer.bias is not None:
            made += self._biases()
        known = self._products.flatten(0, 1).index_select(0, self._rows)
        return made.baddbmm_(known.view(*shape, known.shape[-1]), errors)

    def step(self, inputs: torch.Tensor, errors: torch.Tensor, wanted: bool) -> torch.Tensor | None:
        if self._rows is None:
            target = self._errors[: self.active, self._low : self._high]
            torch.mul(errors, -self.rate, out=target)
        else:
            self._errors.view(-1, errors.shape[-1]).index_add_(
                0, self._rows, errors.flatten(0, 1), alpha=-self.rate
            )
        self._step_bias(errors)
        return None

    def change_of_weight(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        scaled = weights.to(self._errors.device)[:, None, None]
        errors = (_of(self._errors, good) * scaled).flatten(0, 1)
        return errors.T @ _of(self._samples, good).flatten(0, 1)

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
