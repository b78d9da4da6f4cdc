"""The layer that sees the samples themselves, of many clients: it keeps no weight per client.

`linear_layers` says how that can be. A bias is the weight of an input that is always 1: it adds 1 to
the products of samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ....machine.accelerators import widest_float
from .linear_layers import ClientLinear, rows_of

__all__ = ["FirstOnce", "FirstRepeated"]


class FirstOnce(ClientLinear):
    """The layer that sees the samples themselves, in a single epoch: a batch is met once, and
    only the batches before it have changed the weight."""

    def begin(self, clients: int, rate: float) -> None:
        super().begin(clients, rate)
        self._seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        """The samples of each step so far, and the errors that they made: (clients, rows, ...)."""
        self._one = self.before.new_full((1, 1, 1), self.bias_before is not None)

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        made = nn.functional.linear(inputs, self.before, self.bias_before)
        for samples, errors in self._seen:
            known = torch.baddbmm(self._one, inputs, samples[: self.active].mT)
            made.baddbmm_(known, errors[: self.active], alpha=-self.rate)
        return made

    def step(self, inputs: torch.Tensor, errors: torch.Tensor, wanted: bool) -> torch.Tensor | None:
        self._seen.append((inputs, errors))
        return None

    def weight_delta(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        delta = torch.zeros_like(self.before)
        factors = (weights.to(delta) * -self.rate)[:, None, None]
        for samples, errors in self._seen:
            rows = _counted(good, errors)
            counted = rows_of(errors, rows)
            scaled = counted * factors[: len(counted)]  # `good` is in order
            delta.addmm_(scaled.flatten(0, 1).T, rows_of(samples, rows).flatten(0, 1))
        return delta

    def bias_delta(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        delta = torch.zeros_like(self.bias_before)
        factors = weights.to(delta) * -self.rate
        for _, errors in self._seen:
            rows = _counted(good, errors)
            summed = rows_of(errors, rows).flatten(1)
            delta += (factors[: len(summed)] @ summed).view(-1, len(delta)).sum(0)
        return delta

    def bias_deltas(self) -> torch.Tensor | None:
        made: torch.Tensor | None = None
        for _, errors in self._seen:
            added = errors.sum(1).mul_(-self.rate)
            if made is None:
                made = added
            else:
                made[: len(added)] += added
        return made

    def bias_of(self, row: int) -> torch.Tensor:
        bias = self.bias_before.clone()
        for _, errors in self._seen:
            if row < len(errors):
                bias.sub_(errors[row].sum(0), alpha=self.rate)
        return bias

    def squares_of_weight(self) -> torch.Tensor:
        if not self._seen:
            return torch.zeros(self.clients, device=self.before.device)
        outputs, inputs = self.before.shape
        rows = sum(samples.shape[1] for samples, _ in self._seen)
        if rows * (inputs + outputs) >= inputs * outputs:
            return self._squares_of_changes()
        # |sum e x'|^2 = sum (e e')(x x'): the change itself never exists
        samples, errors = (self._by_client([pair[part] for pair in self._seen]) for part in (0, 1))
        products = torch.bmm(errors, errors.mT)
        products *= torch.bmm(samples, samples.mT)
        return products.sum((1, 2), dtype=widest_float(products.device)).clamp(min=0) * self.rate**2

    def _squares_of_changes(self) -> torch.Tensor:
        """Make the changes, where they are no larger than what they are made of."""
        deltas = self.before.new_zeros(self.clients, *self.before.shape)
        for samples, errors in self._seen:
            deltas[: len(errors)].baddbmm_(errors.mT, samples, alpha=-self.rate)
        norms: torch.Tensor = torch.linalg.vector_norm(deltas.flatten(1), dim=1)
        return norms.square()

    def _by_client(self, in_steps: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the rows of all steps, client by client; zeros where a client had no step."""
        if all(len(each) == self.clients for each in in_steps):
            return torch.cat(list(in_steps), 1)
        rows = sum(each.shape[1] for each in in_steps)
        made = in_steps[0].new_zeros(self.clients, rows, in_steps[0].shape[2])
        start = 0
        for each in in_steps:
            made[: len(each), start : start + each.shape[1]] = each
            start += each.shape[1]
        return made

    def weight_of(self, row: int) -> torch.Tensor:
        weight = self.before.clone()
        for samples, errors in self._seen:
            if row < len(errors):
                weight.addmm_(errors[row].T, samples[row], alpha=-self.rate)
        return weight


def _counted(good: list[int] | None, errors: torch.Tensor) -> list[int] | None:
    """Return which of the clients `good` have made these errors (None: all that have)."""
    return None if good is None else [row for row in good if row < len(errors)]


class FirstRepeated(ClientLinear):
    """The layer that sees the samples themselves, epoch after epoch: any of a client's samples
    may have changed the weight before."""

    def begin_samples(self, samples: torch.Tensor, places: torch.Tensor) -> None:
        """Take the samples (clients, samples, features), and which of them are in which batch:
        (clients, steps, batch)."""
        self._samples = samples
        outputs = nn.functional.linear(samples, self.before, self.bias_before)
        self._errors = torch.zeros_like(outputs)
        starts = torch.arange(len(samples), device=places.device) * samples.shape[1]
        self._rows = (places + starts[:, None, None]).transpose(0, 1).contiguous()
        self._one = samples.new_full((1, 1, 1), self.bias_before is not None)
        self._products = torch.baddbmm(self._one, samples, samples.mT).flatten(0, 1)
        self._flat_outputs = outputs.flatten(0, 1)
        self._flat_errors = self._errors.flatten(0, 1)

    def select(self, step: int, width: int) -> None:
        """Let the next step be that of each client's batch of this number, so many rows of it."""
        self._chosen = self._rows[step, : self.active, :width].reshape(-1)

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        made = self._flat_outputs.index_select(0, self._chosen)
        made = made.view(self.active, -1, made.shape[-1])
        known = self._products.index_select(0, self._chosen)
        return made.baddbmm_(
            known.view(self.active, -1, known.shape[-1]), self._errors[: self.active]
        )

    def step(self, inputs: torch.Tensor, errors: torch.Tensor, wanted: bool) -> torch.Tensor | None:
        self._flat_errors.index_add_(0, self._chosen, errors.flatten(0, 1), alpha=-self.rate)
        return None

    def bias_deltas(self) -> torch.Tensor | None:
        return self._errors.sum(1)

    def bias_of(self, row: int) -> torch.Tensor:
        return self.bias_before + self._errors[row].sum(0)

    def weight_delta(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        scaled = weights.to(self._errors.device)[:, None, None]
        errors = (rows_of(self._errors, good) * scaled).flatten(0, 1)
        return errors.T @ rows_of(self._samples, good).flatten(0, 1)

    def squares_of_weight(self) -> torch.Tensor:
        # |sum e x'|^2 = sum (e e')(x x'): the change itself never exists
        errors = torch.bmm(self._errors, self._errors.mT)
        samples = self._products.view_as(errors) - self._one
        return (errors * samples).sum((1, 2), dtype=widest_float(errors.device)).clamp(min=0)

    def weight_of(self, row: int) -> torch.Tensor:
        return self.before + self._errors[row].T @ self._samples[row]
