"""The layer that sees the samples themselves, of many clients: it keeps no weight per client.

`linear_layers` says how that can be.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .batch_layout import BatchLayout
from .linear_layers import ClientLinear, rows_of

__all__ = ["FirstOnce", "FirstRepeated"]


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

    def squares_of_weight(self) -> torch.Tensor:
        inputs, outputs = self.layer.in_features, self.layer.out_features
        if self._batch_rows() * (inputs + outputs) >= inputs * outputs:
            return self._squares_of_changes()
        # |sum e x'|^2 = sum (e e')(x x'): the change itself never exists
        errors, samples = self._by_client(self._errors_in), self._by_client(self._samples_in)
        products = torch.bmm(errors, errors.mT)
        products *= torch.bmm(samples, samples.mT)
        return products.sum((1, 2), dtype=torch.float64).clamp(min=0)

    def _squares_of_changes(self) -> torch.Tensor:
        """Make the changes, where they are no larger than what they are made of."""
        shape = (self.clients, self.layer.out_features, self.layer.in_features)
        changes = torch.zeros(shape, device=self._flat.device)
        for errors, samples in zip(self._errors_in, self._samples_in, strict=True):
            changes[: len(errors)].baddbmm_(errors.mT, samples)
        norms: torch.Tensor = torch.linalg.vector_norm(changes.flatten(1), dim=1)
        return norms.square()

    def _batch_rows(self) -> int:
        return sum(samples.shape[1] for samples in self._samples_in)

    def _by_client(self, in_steps: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the rows of all steps, client by client; zeros where a client had no step."""
        if all(len(each) == self.clients for each in in_steps):
            return torch.cat(list(in_steps), 1)
        made = in_steps[0].new_zeros(self.clients, self._batch_rows(), in_steps[0].shape[2])
        start = 0
        for each in in_steps:
            made[: len(each), start : start + each.shape[1]] = each
            start += each.shape[1]
        return made

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
        errors = (rows_of(self._errors, good) * scaled).flatten(0, 1)
        return errors.T @ rows_of(self._samples, good).flatten(0, 1)

    def squares_of_weight(self) -> torch.Tensor:
        # |sum e x'|^2 = sum (e e')(x x'): the change itself never exists
        errors = torch.bmm(self._errors, self._errors.mT)
        samples = self._products.view_as(errors)
        return (errors * samples).sum((1, 2), dtype=torch.float64).clamp(min=0)

    def weight_of(self, row: int) -> torch.Tensor:
        return self.layer.weight.detach() + self._errors[row].T @ self._samples[row]
