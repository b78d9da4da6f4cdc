"""The layer that sees the samples themselves, of many clients: it keeps no weight per client.

`linear_layers` says how that can be. A bias is the weight of an input that is always 1: it adds 1 to
the products of samples.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from .linear_descent import GradientSum, LinearDescent
from .linear_layers import ClientLinear, rows_of

__all__ = ["FirstOnce", "FirstRepeated"]


class FirstOnce(ClientLinear):
    """The layer that sees the samples themselves, in a single epoch: a batch is met once, and
    only the batches before it have changed the weight."""

    def begin(self, clients: int, descent: LinearDescent) -> None:
        super().begin(clients, descent)
        self._seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        """The samples of each step so far, and the errors that they made: (clients, rows, ...)."""
        self._made = [GradientSum()]
        """What the weight is after each number of steps, of the samples and errors seen."""
        self._found: tuple[torch.Tensor, list[torch.Tensor]] | None = None
        self._one = self.before.new_full((1, 1, 1), self.bias_before is not None)

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        made = nn.functional.linear(inputs, self.before, self.bias_before)
        now = self._made[-1]
        if now.start != 1.0:
            made.mul_(now.start)
        for (samples, errors), factor in zip(self._seen, now.terms, strict=True):
            known = torch.baddbmm(self._one, inputs, samples[: self.active].mT)
            made.baddbmm_(known, errors[: self.active], alpha=factor)
        return made

    def step(self, inputs: torch.Tensor, errors: torch.Tensor, wanted: bool) -> torch.Tensor | None:
        self._seen.append((inputs, errors))
        self._made.append(self._made[-1].after(self.descent))
        return None

    def weight_delta(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        weights, factors = weights.to(self.before), self._in_all()[1]
        delta = self._lost(self.before, good, weights)
        for (samples, errors), factor in zip(self._seen, factors, strict=True):
            rows = _counted(good, errors)
            counted = rows_of(errors, rows)
            mine = weights[: len(counted)] * rows_of(factor[: len(errors)], rows)
            scaled = counted * mine[:, None, None]  # `good` is in order
            delta.addmm_(scaled.flatten(0, 1).T, rows_of(samples, rows).flatten(0, 1))
        return delta

    def bias_delta(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        assert self.bias_before is not None
        weights, factors = weights.to(self.before), self._in_all()[1]
        delta = self._lost(self.bias_before, good, weights)
        for (_, errors), factor in zip(self._seen, factors, strict=True):
            rows = _counted(good, errors)
            summed = rows_of(errors, rows).flatten(1)
            mine = weights[: len(summed)] * rows_of(factor[: len(errors)], rows)
            delta += (mine @ summed).view(-1, len(delta)).sum(0)
        return delta

    def _lost(
        self, before: torch.Tensor, good: list[int] | None, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of what params have lost of those before."""
        if self._made[-1].start == 1.0:
            return torch.zeros_like(before)
        return before * (weights @ (rows_of(self._in_all()[0], good) - 1.0))

    def bias_deltas(self) -> torch.Tensor:
        assert self.bias_before is not None
        kept, factors = self._in_all()
        made = (kept[:, None] - 1.0) * self.bias_before
        for (_, errors), factor in zip(self._seen, factors, strict=True):
            made[: len(errors)].addcmul_(errors.sum(1), factor[: len(errors), None])
        return made

    def bias_of(self, row: int) -> torch.Tensor:
        assert self.bias_before is not None
        now = self._made[self._steps_of(row)]
        bias = self.bias_before * now.start
        for (_, errors), factor in zip(self._seen, now.terms, strict=False):
            bias.add_(errors[row].sum(0), alpha=factor)
        return bias

    def weight_deltas(self, low: int, high: int) -> torch.Tensor:
        kept, factors = self._in_all()
        if self._made[-1].start == 1.0:
            made = self.before.new_zeros(high - low, *self.before.shape)
        else:
            made = (kept[low:high, None, None] - 1.0) * self.before
        for (samples, errors), factor in zip(self._seen, factors, strict=True):
            some = errors[low:high]
            scaled = some * factor[low : low + len(some), None, None]
            made[: len(some)].baddbmm_(scaled.mT, samples[low:high])
        return made

    def weight_of(self, row: int) -> torch.Tensor:
        now = self._made[self._steps_of(row)]
        weight = self.before * now.start
        for (samples, errors), factor in zip(self._seen, now.terms, strict=False):
            weight.addmm_(errors[row].T, samples[row], alpha=factor)
        return weight

    def _steps_of(self, row: int) -> int:
        """Return how many steps a client has made."""
        return sum(row < len(errors) for _, errors in self._seen)

    def _in_all(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return how much of the params before, and of each step's gradients, is in each client's:
        (clients,) each."""
        if self._found is None:
            counts = [len(errors) for _, errors in self._seen]
            steps = (np.arange(self.clients)[:, None] < np.array(counts, np.int64)).sum(1)
            terms = np.zeros((len(self._made), len(counts)))
            for number, made in enumerate(self._made):
                terms[number, :number] = made.terms
            starts = np.array([made.start for made in self._made])
            found = np.concatenate([starts[:, None], terms], axis=1)[steps].T
            kept, *factors = torch.from_numpy(found).to(self.before)
            self._found = kept, factors
        return self._found


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
        self._now = GradientSum()
        self._kept = samples.new_ones(len(samples))
        """How much of the params before is in each client's."""
        self._errors = torch.zeros_like(outputs)
        """What each client's weight has besides, along each of its samples."""
        self._velocity = self._errors if self.descent.is_plain else torch.zeros_like(outputs)
        starts = torch.arange(len(samples), device=places.device) * samples.shape[1]
        self._rows = (places + starts[:, None, None]).transpose(0, 1).contiguous()
        self._one = samples.new_full((1, 1, 1), self.bias_before is not None)
        self._products = torch.baddbmm(self._one, samples, samples.mT).flatten(0, 1)
        self._flat_outputs = outputs.flatten(0, 1)
        self._flat_velocity = self._velocity.flatten(0, 1)

    def select(self, step: int, width: int) -> None:
        """Let the next step be that of each client's batch of this number, so many rows of it."""
        self._chosen = self._rows[step, : self.active, :width].reshape(-1)

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        made = self._flat_outputs.index_select(0, self._chosen)
        made = made.view(self.active, -1, made.shape[-1])
        known = self._products.index_select(0, self._chosen)
        return made.baddbmm_(
            known.view(self.active, -1, known.shape[-1]),
            self._errors[: self.active],
            beta=self._now.start,
        )

    def step(self, inputs: torch.Tensor, errors: torch.Tensor, wanted: bool) -> torch.Tensor | None:
        descent, flat = self.descent, errors.flatten(0, 1)
        if descent.is_plain:
            self._flat_velocity.index_add_(0, self._chosen, flat, alpha=-descent.rate)
            return None
        now, velocity = self._errors[: self.active], self._velocity[: self.active]
        velocity.mul_(descent.momentum).add_(now, alpha=descent.decay + descent.proximal)
        self._flat_velocity.index_add_(0, self._chosen, flat)
        now.sub_(velocity, alpha=descent.rate)
        self._now = self._now.after(descent)
        self._kept[: self.active] = self._now.start
        return None

    def bias_deltas(self) -> torch.Tensor:
        assert self.bias_before is not None
        return self._errors.sum(1) + (self._kept[:, None] - 1.0) * self.bias_before

    def bias_of(self, row: int) -> torch.Tensor:
        assert self.bias_before is not None
        return self.bias_before * self._kept[row] + self._errors[row].sum(0)

    def weight_delta(self, good: list[int] | None, weights: torch.Tensor) -> torch.Tensor:
        weights = weights.to(self._errors.device)
        errors = (rows_of(self._errors, good) * weights[:, None, None]).flatten(0, 1)
        delta = errors.T @ rows_of(self._samples, good).flatten(0, 1)
        if self._now.start != 1.0:
            lost = weights.to(delta) @ (rows_of(self._kept, good) - 1.0)
            delta.add_(self.before * lost)
        return delta

    def weight_deltas(self, low: int, high: int) -> torch.Tensor:
        delta = torch.bmm(self._errors[low:high].mT, self._samples[low:high])
        if self._now.start != 1.0:
            delta.add_((self._kept[low:high, None, None] - 1.0) * self.before)
        return delta

    def weight_of(self, row: int) -> torch.Tensor:
        return self.before * self._kept[row] + self._errors[row].T @ self._samples[row]
