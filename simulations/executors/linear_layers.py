"""Linear layers of many clients, trained by plain SGD without ever making a gradient.

A batch of all clients goes through the module as one long batch; only the linear layers know that
its rows belong to different clients. Each makes its own SGD step while the loss is differentiated:

- A layer in the middle holds a weight per client from the first step on, and a step is one matrix
  product added in place.
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

from .batch_layout import BatchLayout

__all__ = ["ClientLinear", "FirstOnce", "FirstRepeated", "InnerLinear"]


class ClientLinear(nn.Module):
    """Takes the place of one `nn.Linear` in a module.

    A round begins with `begin`; a step is that of the first `active` clients, all of them at
    first.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.rate, self.clients, self.active = 0.0, 0, 0
        self._anchor = torch.zeros((), device=layer.weight.device, requires_grad=True)
        """Something to differentiate by, so that the layer is asked for its gradient."""
        self._bias: torch.Tensor | None = None
        """One a client, after the first step."""

    def begin(self, clients: int, rate: float) -> None:
        """Begin a round of so many clients with the layer's own params."""
        self.clients, self.active, self.rate = clients, clients, rate
        self._bias = None

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
        before = self.layer.bias.detach()
        if self._bias is None:
            return torch.zeros_like(before)
        change = _of(self._bias, good)[:, 0] - before
        return weights.to(change.device) @ change

    def weight_of(self, row: int) -> torch.Tensor:
        """Return one client's weight."""
        raise NotImplementedError

    def bias_of(self, row: int) -> torch.Tensor:
        """Return one client's bias."""
        return self.layer.bias.detach() if self._bias is None else self._bias[row, 0]

    def _biases(self) -> torch.Tensor | None:
        """Return what is added to the outputs: (features,), or (clients, 1, features)."""
        own = self.layer.bias
        return own if own is None or self._bias is None else self._bias[: self.active]

    def _step_bias(self, errors: torch.Tensor) -> None:
        if self.layer.bias is None:
            return
        if self._bias is None:
            self._bias = torch.sub(self.layer.bias, errors.sum(1, keepdim=True), alpha=self.rate)
        else:
            self._bias[: self.active].sub_(errors.sum(1, keepdim=True), alpha=self.rate)


class InnerLinear(ClientLinear):
    """A layer whose inputs change with the layers before it: a weight per client."""

    def begin(self, clients: int, rate: float) -> None:
        super().begin(clients, rate)
        self._weight: torch.Tensor | None = None

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        if self._weight is None:
            return nn.functional.linear(inputs, self.layer.weight, self._biases())
        transposed = self._weight[: self.active].mT
        biases = self._biases()
        if biases is None:
            return torch.bmm(inputs, transposed)
        return torch.baddbmm(biases, inputs, transposed)

    def step(self, inputs: torch.Tensor, errors: torch.Tensor, wanted: bool) -> torch.Tensor | None:
        if self._weight is None:
            before = self.layer.weight.detach()
            gradient = errors @ before if wanted else None
            self._weight = torch.baddbmm(before, errors.mT, inputs, alpha=-self.rate)
        else:
            active = self._weight[: self.active]
            gradient = torch.bmm(errors, active) if wanted else None
            active.baddbmm_(errors.mT, inputs, alpha=-self.rate)
        self._step_bias(errors)
        return gradient

    def change_of_weight(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        before = self.layer.weight.detach()
        if self._weight is None:
            return torch.zeros_like(before)
        change = _of(self._weight, good) - before
        return (weights.to(change.device) @ change.flatten(1)).view(before.shape)

    def weight_of(self, row: int) -> torch.Tensor:
        return self.layer.weight.detach() if self._weight is None else self._weight[row]


class FirstOnce(ClientLinear):
    """The layer that sees the samples themselves, in a single epoch: a batch is met once, and
    only the batches before it have changed the weight."""

    def begin_samples(self, samples: torch.Tensor, layout: BatchLayout) -> None:
        """Take the samples (rows, features), as `layout.places` has them."""
        self._layout, self._flat = layout, samples
        self._errors = torch.zeros(len(samples), self.layer.out_features, device=samples.device)
        self._samples_in, self._errors_in = layout.in_steps(samples), layout.in_steps(self._errors)
        self._outputs_in = layout.in_steps(samples @ self.layer.weight.detach().T)

    def select(self, step: int) -> None:
        """Let the next step be that of each client's batch of this number."""
        self._step = step

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        made = self._outputs_in[self._step]
        biases = self._biases()
        made = made.clone() if biases is None else made + biases
        for before in range(self._step):
            known = torch.bmm(inputs, self._samples_in[before][: self.active].mT)
            made.baddbmm_(known, self._errors_in[before][: self.active])
        return made

    def step(self, inputs: torch.Tensor, errors: torch.Tensor, wanted: bool) -> torch.Tensor | None:
        torch.mul(errors, -self.rate, out=self._errors_in[self._step])
        self._step_bias(errors)
        return None

    def change_of_weight(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        every = weights.to(self._errors.device)
        if good is not None:
            every = torch.zeros(self.clients, device=self._errors.device)
            every[good] = weights.to(every.device)
        by_row = self._layout.by_row(every)[:, None]
        scaled = self._errors * by_row
        if good is not None:
            scaled.masked_fill_(by_row == 0, 0.0)  # those of the others need not be finite
        return scaled.T @ self._flat

    def weight_of(self, row: int) -> torch.Tensor:
        steps = [step for step, active in enumerate(self._layout.active) if row < active]
        errors = torch.cat([self._errors_in[step][row] for step in steps])
        samples = torch.cat([self._samples_in[step][row] for step in steps])
        return self.layer.weight.detach() + errors.T @ samples


class FirstRepeated(ClientLinear):
    """The layer that sees the samples themselves, epoch after epoch: any of a client's samples
    may have changed the weight before."""

    def begin_samples(self, samples: torch.Tensor, places: torch.Tensor) -> None:
        """Take the samples (clients, samples, features), and which of them are in which batch:
        (clients, steps, batch)."""
        self._samples = samples
        self._outputs = samples @ self.layer.weight.detach().T
        self._errors = torch.zeros_like(self._outputs)
        starts = torch.arange(len(samples), device=places.device) * samples.shape[1]
        self._rows = (places + starts[:, None, None]).transpose(0, 1).flatten(1)
        self._products = torch.bmm(samples, samples.mT).flatten(0, 1)
        self._flat_outputs = self._outputs.flatten(0, 1)
        self._flat_errors = self._errors.flatten(0, 1)
        self._width = places.shape[2]

    def select(self, step: int) -> None:
        """Let the next step be that of each client's batch of this number."""
        self._chosen = self._rows[step, : self.active * self._width]

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        made = self._flat_outputs.index_select(0, self._chosen)
        made = made.view(self.active, -1, made.shape[-1])
        biases = self._biases()
        if biases is not None:
            made += biases
        known = self._products.index_select(0, self._chosen)
        return made.baddbmm_(
            known.view(self.active, -1, known.shape[-1]), self._errors[: self.active]
        )

    def step(self, inputs: torch.Tensor, errors: torch.Tensor, wanted: bool) -> torch.Tensor | None:
        self._flat_errors.index_add_(0, self._chosen, errors.flatten(0, 1), alpha=-self.rate)
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
