"""The layer that sees the samples themselves, of many clients: it keeps no weight per client.

`linear_layers` says how that can be. A bias is the weight of an input that is always 1: it adds 1 to
the products of samples.
"""

from __future__ import annotations

import torch
from torch import nn

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

    def bias_deltas(self) -> torch.Tensor:
        assert self.bias_before is not None
        made = self.before.new_zeros(self.clients, len(self.bias_before))
        for _, errors in self._seen:
            made[: len(errors)].sub_(errors.sum(1), alpha=self.rate)
        return made

    def bias_of(self, row: int) -> torch.Tensor:
        bias = self.bias_before.clone()
        for _, errors in self._seen:
            if row < len(errors):
                bias.sub_(errors[row].sum(0), alpha=self.rate)
        return bias

    def weight_deltas(self, low: int, high: int) -> torch.Tensor:
        made = self.before.new_zeros(high - low, *self.before.shape)
        for samples, errors in self._seen:
            some = errors[low:high]
            made[: len(some)].baddbmm_(some.mT, samples[low:high], alpha=-self.rate)
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

    def bias_deltas(self) -> torch.Tensor:
        return self._errors.sum(1)

    def bias_of(self, row: int) -> torch.Tensor:
        return self.bias_before + self._errors[row].sum(0)

    def weight_delta(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        scaled = weights.to(self._errors.device)[:, None, None]
        errors = (rows_of(self._errors, good) * scaled).flatten(0, 1)
        return errors.T @ rows_of(self._samples, good).flatten(0, 1)

    def weight_deltas(self, low: int, high: int) -> torch.Tensor:
        return torch.bmm(self._errors[low:high].mT, self._samples[low:high])

    def weight_of(self, row: int) -> torch.Tensor:
        return self.before + self._errors[row].T @ self._samples[row]
