"""Optimizers whose steps are linear in the gradients: SGD with momentum, weight decay, a proximal term.

The params after some steps are then a combination of those before, w0, and of each step's gradient:
start * w0 + sum terms_j g_j, with numbers that are the same for every param and client. A gradient
that is a product of a few samples and errors need therefore not be made to be followed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ....training.settings import TrainingSettings

__all__ = ["GradientSum", "LinearDescent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearDescent:
    """v = momentum * v + g + decay * w + proximal * (w - w0), then w = w - rate * v; v begins with 0."""

    rate: float
    momentum: float = 0.0
    decay: float = 0.0
    proximal: float = 0.0

    @classmethod
    def of(cls, settings: TrainingSettings) -> LinearDescent | None:
        """Return a round's steps, or None where they are not linear in the gradients."""
        if settings.optimizer != "sgd" or settings.precision != "fp32":
            return None
        if settings.gradient_clip_norm:
            return None
        return cls(
            rate=settings.learning_rate_now(),
            momentum=settings.momentum,
            decay=settings.weight_decay,
            proximal=settings.proximal_mu,
        )

    @property
    def is_plain(self) -> bool:
        """Whether a step follows its own gradient, and nothing else."""
        return not (self.momentum or self.decay or self.proximal)

    def step(
        self, params: torch.Tensor | None, velocity: torch.Tensor, start: torch.Tensor
    ) -> torch.Tensor:
        """Make a step and return the params, in place unless it is the first step (None).

        `velocity` is momentum * v + g; what pulls the params is added to it.

        Shapes: params and velocity (clients, ...), start (...).
        """
        if self.decay:
            velocity.add_(start if params is None else params, alpha=self.decay)
        if params is None:
            return torch.sub(start, velocity, alpha=self.rate)
        if self.proximal:
            velocity.add_(params - start, alpha=self.proximal)
        return params.sub_(velocity, alpha=self.rate)


@dataclass(frozen=True, slots=True)
class GradientSum:
    """Params after some steps: start * w0 + sum terms_j g_j, and likewise the velocity."""

    start: float = 1.0
    terms: tuple[float, ...] = ()
    _velocity_start: float = 0.0
    _velocity_terms: tuple[float, ...] = ()

    def after(self, descent: LinearDescent) -> GradientSum:
        """Return what the params are after one more step."""
        momentum, pull = descent.momentum, descent.decay + descent.proximal
        before = zip(self._velocity_terms, self.terms, strict=True)
        velocity = (*(momentum * v + pull * w for v, w in before), 1.0)
        velocity_start = momentum * self._velocity_start
        velocity_start += descent.decay * self.start + descent.proximal * (self.start - 1.0)
        terms = tuple(
            w - descent.rate * v for w, v in zip((*self.terms, 0.0), velocity, strict=True)
        )
        return GradientSum(
            self.start - descent.rate * velocity_start, terms, velocity_start, velocity
        )
