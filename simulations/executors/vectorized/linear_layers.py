"""Linear layers of many clients, trained by SGD without ever making a gradient.

A batch of all clients goes through the module as one long batch; only the linear layers know that
its rows belong to different clients. Each makes its own SGD step while the loss is differentiated:

- A layer in the middle holds a weight per client from the first step on, and a step is one matrix
  product added in place: to the weight, or to its velocity where there is momentum.
- The first layer sees the samples themselves. It keeps no weight per client but, for each sample,
  what the steps so far add to the weight along that sample: with step size r, errors e and samples
  x, W = W0 - r sum e x', so W x = W0 x - r sum e (x' x). The products x' x of a client's samples
  with each other are fewer than its weights; W0 x, and the sum of all clients' deltas, are one
  matrix product each. Momentum, weight decay and a proximal term change the factors, not the
  form (`linear_descent`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .linear_descent import LinearDescent

__all__ = ["ClientLinear", "InnerLinear", "rows_of"]


class ClientLinear(nn.Module):
    """Takes the place of one `nn.Linear` in a module.

    A round begins with `begin`; a step is that of the first `active` clients, all of them at
    first.
    """

    __setattr__ = object.__setattr__  # type: ignore[assignment]
    """Nothing in it is for torch to find, which would look at each value for microseconds."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.descent, self.clients, self.active = LinearDescent(rate=0.0), 0, 0
        self._anchor = torch.zeros((), device=layer.weight.device, requires_grad=True)
        """Something to differentiate by, so that the layer is asked for its gradient."""
        self.before = layer.weight.detach()
        """The weight that a round begins with."""
        self.bias_before = None if layer.bias is None else layer.bias.detach()
        self._bias: torch.Tensor | None = None
        """One a client, after the first step."""
        self._bias_velocity: torch.Tensor | None = None

    def begin(self, clients: int, descent: LinearDescent) -> None:
        """Begin a round of so many clients with the layer's own params."""
        self.clients, self.active, self.descent = clients, clients, descent
        weight, bias = self.layer.weight, self.layer.bias
        self.before, self.bias_before = weight.detach(), None if bias is None else bias.detach()
        self._bias = self._bias_velocity = None

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

    def weight_delta(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of the weights' deltas of the clients `good`, in ascending order
        (None: all); what the others have need not be finite."""
        raise NotImplementedError

    def bias_delta(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of the biases' changes, likewise."""
        delta = self.bias_deltas()
        return weights.to(delta) @ rows_of(delta, good)

    def weight_deltas(self, low: int, high: int) -> torch.Tensor:
        """Return the deltas of the weight of the clients `low` to `high`."""
        raise NotImplementedError

    def bias_deltas(self) -> torch.Tensor:
        """Return every client's delta of the bias."""
        assert self.bias_before is not None
        if self._bias is None:
            return torch.zeros_like(self.bias_before).expand(self.clients, -1)
        return self._bias[:, 0] - self.bias_before

    def weight_of(self, row: int) -> torch.Tensor:
        """Return one client's weight."""
        raise NotImplementedError

    def bias_of(self, row: int) -> torch.Tensor:
        """Return one client's bias."""
        return self.bias_before if self._bias is None else self._bias[row, 0]

    def _biases(self) -> torch.Tensor | None:
        """Return what is added to the outputs: (features,), or (clients, 1, features)."""
        return self.bias_before if self._bias is None else self._bias[: self.active]

    def _step_bias(self, errors: torch.Tensor) -> None:
        if self.bias_before is None:
            return
        velocity = errors.sum(1, keepdim=True)
        if self.descent.momentum:
            if self._bias_velocity is None:
                self._bias_velocity = velocity
            else:
                followed = self._bias_velocity[: self.active]
                velocity = followed.mul_(self.descent.momentum).add_(velocity)
        if self._bias is None:
            self._bias = self.descent.step(None, velocity, self.bias_before)
        else:
            self.descent.step(self._bias[: self.active], velocity, self.bias_before)


class InnerLinear(ClientLinear):
    """A layer whose inputs change with the layers before it: a weight per client."""

    def begin(self, clients: int, descent: LinearDescent) -> None:
        super().begin(clients, descent)
        self._weight: torch.Tensor | None = None
        self._velocity: torch.Tensor | None = None
        self._change: torch.Tensor | None = None

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        if self._weight is None:
            return nn.functional.linear(inputs, self.before, self._biases())
        transposed = self._weight[: self.active].mT
        biases = self._biases()
        if biases is None:
            return torch.bmm(inputs, transposed)
        return torch.baddbmm(biases, inputs, transposed)

    def step(self, inputs: torch.Tensor, errors: torch.Tensor, wanted: bool) -> torch.Tensor | None:
        if self._weight is None:
            gradient = errors @ self.before if wanted else None
        else:
            gradient = torch.bmm(errors, self._weight[: self.active]) if wanted else None
        self._step_weight(inputs, errors)
        self._step_bias(errors)
        return gradient

    def _step_weight(self, inputs: torch.Tensor, errors: torch.Tensor) -> None:
        active = None if self._weight is None else self._weight[: self.active]
        if self.descent.is_plain:
            if active is None:
                rate = self.descent.rate
                self._weight = torch.baddbmm(self.before, errors.mT, inputs, alpha=-rate)
            else:
                active.baddbmm_(errors.mT, inputs, alpha=-self.descent.rate)
            return
        if self._velocity is None:
            self._velocity = torch.bmm(errors.mT, inputs)
        velocity = self._velocity[: self.active]
        if active is None:
            self._weight = self.descent.step(None, velocity, self.before)
            return
        velocity.baddbmm_(errors.mT, inputs, beta=self.descent.momentum)
        self.descent.step(active, velocity, self.before)

    def weight_delta(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        delta = rows_of(self._deltas(), good)
        return (weights.to(delta) @ delta.flatten(1)).view(self.before.shape)

    def weight_deltas(self, low: int, high: int) -> torch.Tensor:
        return self._deltas()[low:high]

    def _deltas(self) -> torch.Tensor:
        """Return every client's delta after its training; it is written over the weights."""
        if self._change is None:
            if self._weight is None:
                self._change = torch.zeros_like(self.before).expand(self.clients, -1, -1)
            else:
                self._change, self._weight = self._weight.sub_(self.before), None
                self._velocity = None
        return self._change

    def weight_of(self, row: int) -> torch.Tensor:
        if self._change is not None:
            return self.before + self._change[row]
        return self.before if self._weight is None else self._weight[row]


def rows_of(rows: torch.Tensor, good: list[int] | None) -> torch.Tensor:
    """Return the rows of the clients `good` (None: all)."""
    return rows if good is None else rows[good]


class _Linear(torch.autograd.Function):
    """Runs a layer forward and backward."""

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
