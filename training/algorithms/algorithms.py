"""The clients' halves of algorithms, where clients do more than train.

Each is written on tensors of one client or of many at once: the trainer for one client and the
vectorized executor run the same code. The servers' halves are in `strategies`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

import torch

from ...strategies.algorithms.afl import MIXTURE
from ...strategies.algorithms.auxiliary_names import auxiliary_name
from ...strategies.algorithms.feddyn import LEARNED
from ...strategies.algorithms.fedlion import MOMENTUM
from ...strategies.algorithms.fednova import STEPS
from ...strategies.algorithms.qfedavg import CURVATURE
from ...strategies.algorithms.scaffold import CONTROL
from ..local_round import Answer, LocalRound, along
from ..objectives import controlled, dynamic, next_control, next_gradient
from ..settings import TrainingSettings
from .objective import TrainingStep
from .training_bench import TrainingBench

__all__ = ["LocalAlgorithm"]

Tensor = torch.Tensor

LOSS_MIN = 1e-10
"""A smaller loss is taken for this one: it may be raised to a negative power."""
EXPONENT_MAX = 50.0


class LocalAlgorithm:
    """A client's half of an algorithm; this one adds nothing to training.

    An algorithm of one's own is a subclass. It trains by at most one of: `corrected`, which corrects
    the gradient of every step; `loss`, in the place of the task's; `train`, the whole local training.

    Attributes:
        auxiliary: the kinds of auxiliary tensors that come for every tensor; the answer has them too.
        tensors: the names of the auxiliary tensors, "kind/name", that come for all tensors together,
            likewise.
        steers: which of the kinds corrects every step; its tensors are like the params.
        slot: which of the kinds the optimizer's slot begins with.
        keeps: the kind of client state for every learned tensor; `begins` says what it is before
            the client's first round.
        state: the client state beside that, name -> shape; zeros before the client's first round.
        features: the names of the modules whose outputs `loss` looks at.
        needs_losses: whether the loss is measured before the round.
        settings: of [training], for this round.
    """

    auxiliary: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    steers: str | None = None
    slot: str | None = None
    keeps: str | None = None
    state: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    features: tuple[str, ...] = ()
    needs_losses = False
    settings: TrainingSettings

    def bound(self, settings: TrainingSettings) -> Self:
        """Return the same half for the settings of a round."""
        made = copy.copy(self)
        made.settings = settings
        return made

    def begins(self, start: Tensor) -> Tensor:
        """Return what the client keeps of a learned tensor before its first round: zeros."""
        return torch.zeros_like(start)

    def corrected(
        self,
        gradient: Tensor,
        param: Tensor,
        start: Tensor,
        own: Tensor | None,
        shared: Tensor | None,
    ) -> Tensor:
        """Return the corrected gradient; `own` is the client state, `shared` the auxiliary tensors."""
        return gradient

    def loss(self, step: TrainingStep) -> Tensor:
        """Return the loss of each example, (batch,)."""
        return step.task_losses()

    def train(self, bench: TrainingBench) -> None:
        """Train `bench.module`, in place."""
        raise NotImplementedError

    @property
    def has_loss(self) -> bool:
        """Whether it trains along a loss of its own."""
        return type(self).loss is not LocalAlgorithm.loss

    @property
    def trains_itself(self) -> bool:
        """Whether it makes the steps itself."""
        return type(self).train is not LocalAlgorithm.train

    def answer(self, end: LocalRound) -> Answer:
        """Return what the client sends, and its new state."""
        return Answer(params=end.trained)


class Scaffold(LocalAlgorithm):
    """Corrects every step by control variates."""

    auxiliary = (CONTROL,)
    steers = CONTROL
    keeps = CONTROL

    def corrected(
        self,
        gradient: Tensor,
        param: Tensor,
        start: Tensor,
        own: Tensor | None,
        shared: Tensor | None,
    ) -> Tensor:
        assert own is not None and shared is not None
        return controlled(gradient, own, shared)

    def answer(self, end: LocalRound) -> Answer:
        client_state: dict[str, Tensor] = {}
        sent: dict[str, Tensor] = {}
        for name in end.learned:
            key, delta = auxiliary_name(CONTROL, name), end.delta_of(name)
            own, shared = end.client_state[key], end.shared[key]
            distance = along(end.steps * self.settings.learning_rate_now(), delta)
            client_state[key] = next_control(own, shared, delta, distance=distance).to(own.dtype)
            sent[key] = shared + (client_state[key] - own)
        return Answer(params=end.trained, auxiliary=sent, client_state=client_state)


class FedNova(LocalAlgorithm):
    """Divides its delta by the effective number of its steps."""

    auxiliary = (STEPS,)

    def answer(self, end: LocalRound) -> Answer:
        counts = self._counts(end.steps)
        ones = torch.ones_like(counts)
        steps = {
            auxiliary_name(STEPS, name): counts if owner in end.learned else ones
            for name, owner in end.owners.items()
        }
        return Answer(params=end.scaled(1 / counts, names=end.learned), auxiliary=steps)

    def _counts(self, steps: Tensor) -> Tensor:
        """Return the effective steps: the delta of gradients of 1, in units of the learning rate.

        It is the L1 norm of the paper's a_i, with momentum and a proximal term or without.
        """
        pull = self.settings.proximal_mu * self.settings.learning_rate_now()
        velocity, moved = 0.0, [0.0]
        for _ in range(int(steps.max())):
            velocity = self.settings.momentum * velocity + 1 - pull * moved[-1]
            moved.append(moved[-1] + velocity)
        return torch.tensor(moved, dtype=steps.dtype, device=steps.device)[steps.long()]


class FedDyn(LocalAlgorithm):
    """Regularises its loss by the gradient where its last round ended."""

    auxiliary = (LEARNED,)
    keeps = "gradient"

    def corrected(
        self,
        gradient: Tensor,
        param: Tensor,
        start: Tensor,
        own: Tensor | None,
        shared: Tensor | None,
    ) -> Tensor:
        assert own is not None
        return dynamic(gradient, param, start, own, alpha=self.settings.dynamic_alpha)

    def answer(self, end: LocalRound) -> Answer:
        alpha, client_state = self.settings.dynamic_alpha, {}
        for name in end.learned:
            key = auxiliary_name("gradient", name)
            client_state[key] = next_gradient(
                end.client_state[key], end.delta_of(name), alpha=alpha
            )
        one = torch.ones_like(end.steps, dtype=torch.int8)
        learned = {
            auxiliary_name(LEARNED, name): one if owner in end.learned else torch.zeros_like(one)
            for name, owner in end.owners.items()
        }
        return Answer(params=end.trained, auxiliary=learned, client_state=client_state)


class QFedAvg(LocalAlgorithm):
    """Weights its delta by a power of its loss."""

    tensors = (CURVATURE,)
    needs_losses = True

    def answer(self, end: LocalRound) -> Answer:
        q, loss = self.settings.fairness_q, end.losses.to(end.steps.dtype).clamp(min=LOSS_MIN)
        lipschitz = 1 / self.settings.learning_rate_now()
        curvature = q * loss ** (q - 1) * lipschitz * end.squared_delta() + loss**q
        return Answer(params=end.scaled(loss**q), auxiliary={CURVATURE: curvature})


class Afl(LocalAlgorithm):
    """Weights its delta by a number that grows with its loss."""

    tensors = (MIXTURE,)
    state = MappingProxyType({"score": ()})
    needs_losses = True

    def answer(self, end: LocalRound) -> Answer:
        before, score = end.shared[MIXTURE], end.client_state["score"]
        weight = (score - before).clamp(-EXPONENT_MAX, EXPONENT_MAX).exp()
        score = score + self.settings.mixture_learning_rate * end.losses.to(end.steps.dtype)
        return Answer(
            params=end.scaled(weight),
            auxiliary={MIXTURE: before + weight},
            client_state={"score": score},
        )


class FedLion(LocalAlgorithm):
    """Begins with the shared momentum, and answers with its own."""

    auxiliary = (MOMENTUM,)
    slot = MOMENTUM

    def answer(self, end: LocalRound) -> Answer:
        sent = {auxiliary_name(MOMENTUM, name): end.momentum[name] for name in end.learned}
        return Answer(params=end.trained, auxiliary=sent)
