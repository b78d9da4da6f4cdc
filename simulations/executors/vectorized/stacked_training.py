"""Trains many clients at once: the steps of `training/loop/trainer.py` with a leading client axis.

Clients are sorted by their number of samples, so that those which still train at a step are a
prefix of the stack: a step works on views, and nobody waits or is masked. Where the model and the
loss are proven to act on each example alone, a last, smaller batch is padded with weights of zero;
elsewhere clients with batches of the same size are taken together instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ....randomness.seeds import derive, spread
from ....task import Task
from ....training.loop.optimizers import descend, new_slots
from ....training.objectives import proximal
from ....training.settings import TrainingSettings
from .client_randomness import ClientRandomness
from .cohort_data import BatchPlan, CohortData, plan_batches
from .example_values import ExampleValues, Means, Weights
from .linear_descent import LinearDescent
from .low_rank import LowRankWeight
from .stacked_module import StackedModule, Tensors
from .stacked_session import StackedSession
from .step_trace import StepTrace

__all__ = ["plan_of", "train_stacked"]


@dataclass(frozen=True, slots=True)
class StackedTrained:
    """What training made of a stack.

    Shapes: params and buffers (clients, ...), `starts` (...) are those before.

    Attributes:
        low_rank: the weights that no client has in whole, by name.
    """

    starts: Tensors
    rows: Tensors
    means: Means
    low_rank: Mapping[str, LowRankWeight] = field(default_factory=dict)

    def deltas(self, good: list[int] | None, weights: Weights) -> Tensors:
        """Return the weighted sum of the clients' deltas."""
        return {
            name: _weighted(rows if good is None else rows[good], self.starts[name], weights(name))
            for name, rows in self.rows.items()
        } | {n: each.weight_delta(good, weights(n)) for n, each in self.low_rank.items()}

    def each(self, low: int, high: int) -> Tensors:
        """Return the deltas of the clients `low` to `high`."""
        return {
            name: rows[low:high] - self.starts[name]
            for name, rows in self.rows.items()
            if rows.is_floating_point()
        } | {name: each.weight_deltas(low, high) for name, each in self.low_rank.items()}

    def of_client(self, row: int) -> Tensors:
        """Return one client's params and buffers."""
        whole = {name: each.weight_of(row) for name, each in self.low_rank.items()}
        return {name: rows[row] for name, rows in self.rows.items()} | whole


def _weighted(rows: torch.Tensor, start: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    delta = rows - start
    exact = delta.dtype if delta.dtype == torch.float64 else torch.float32
    added = weights.to(delta.device, exact) @ delta.reshape(len(delta), -1).to(exact)
    return added.view(start.shape)


def train_stacked(
    task: Task,
    stacked: StackedModule,
    data: CohortData,
    settings: TrainingSettings,
    *,
    clients: Sequence[int],
    session: StackedSession | None = None,
    losses: torch.Tensor | None = None,
) -> StackedTrained:
    """Train the clients (node ids, in the order of `data`) from the module's params.

    `session` is the client's half of the algorithm, if there is one; `losses`
    (clients,) are those before the round, if it needs them.

    Guarantees: each client's params are those of the sequential trainer within float rounding.
    Raises:
        DataError: the loss or a metric does not give one value an example.
    """
    return _Training(task, stacked, data, settings, clients, session).run(losses)


def plan_of(data: CohortData, settings: TrainingSettings, clients: Sequence[int]) -> BatchPlan:
    """Return the clients' batches in a round, as the trainer for one client draws them."""
    stream = derive(settings.stream, settings.server_round, "batches")
    return plan_batches(
        data,
        spread(stream, np.array(clients, np.uint64)),
        batch_size=settings.batch_size * settings.accumulation_steps,
        epochs=settings.epochs,
    )


class _Training:
    def __init__(
        self,
        task: Task,
        stacked: StackedModule,
        data: CohortData,
        settings: TrainingSettings,
        clients: Sequence[int],
        session: StackedSession | None,
    ) -> None:
        self._session = session
        self._stacked, self._data, self._settings = stacked, data, settings
        self._plan = plan_of(data, settings, clients)
        self._device = data.inputs.device
        self._params, self._buffers = stacked.stack(len(clients))
        begun = session.slots if session is not None else None
        self._slots = new_slots(list(self._params.values()), settings) if begun is None else begun
        self._clients = clients
        self._randomness: ClientRandomness | None = None
        self._rows = torch.from_numpy(self._plan.rows).to(self._device)
        self._values = ExampleValues(task, self._plan.layout, stacked.mixing_metrics)
        self._weights = self._plan.layout.weights
        self._low_rank = {n: LowRankWeight(each) for n, each in stacked.low_rank.items()}
        for weight in self._low_rank.values():
            descent = LinearDescent.of(settings)
            assert descent is not None and session is None
            weight.begin_rows(len(clients), descent, sum(self._plan.layout.widths))

    def run(self, losses: torch.Tensor | None) -> StackedTrained:
        layout = self._plan.layout
        for step, active in enumerate(layout.active):
            if self._stacked.in_rows:
                self._step(step, 0, active, layout.widths[step])
            else:
                for low, high, size in layout.runs(step):
                    self._step(step, low, high, size)
        starts = {**self._stacked.trained, **self._stacked.buffers}
        rows = {**self._params, **self._buffers}
        if self._session is not None:
            steps = torch.from_numpy(np.count_nonzero(layout.sizes, axis=1)).to(self._device)
            starts |= self._session.starts
            rows = self._session.answer(
                rows, steps=steps, losses=torch.zeros(len(steps)) if losses is None else losses
            )
        weights = {f"{place}.weight": each for place, each in self._low_rank.items()}
        return StackedTrained(starts, rows, self._values.means(), weights)

    def _step(self, number: int, low: int, high: int, size: int) -> None:
        """Make a step of the clients `low` to `high` with batches of `size`."""
        rows = self._rows[low:high, number, :size].reshape(-1)
        inputs, targets = self._data.inputs[rows], self._data.targets[rows]
        inputs = inputs.view(high - low, size, *inputs.shape[1:])
        targets = targets.view(high - low, size, *targets.shape[1:])
        params = {name: tensor[low:high] for name, tensor in self._params.items()}
        buffers = {name: tensor[low:high] for name, tensor in self._buffers.items()}
        weights = self._weights[low:high, number, :size]
        trace = self._stacked.trace(inputs[0], targets[0])
        session = self._session
        own = session.own(low, high) if session is not None and session.has_loss else {}
        for place, weight in self._low_rank.items():  # in rows: `low` is 0
            own |= {f"{place}.{name}": each for name, each in weight.history(high).items()}
        taps = {
            f"{place}.tap": inputs.new_zeros(
                high, size, len(weight.before), dtype=weight.before.dtype
            )
            for place, weight in self._low_rank.items()
        }
        randomness = self._drawing(low, high, trace)
        made = self._stacked.step(
            {**params, **taps}, buffers, inputs, targets, weights, own, randomness
        )
        if randomness is not None:
            randomness.end()
        outputs, flat = made.outputs.flatten(0, 1), targets.flatten(0, 1)
        self._values.take(number, low, made.losses, outputs, flat)
        for place, weight in self._low_rank.items():
            weight.active = high
            weight.add(made.seen[place], made.gradients[f"{place}.tap"])
        used = [name for name in params if name not in trace.unused]
        followed = {name: made.gradients[name] for name in used}
        if self._session is not None:
            followed = self._session.corrected(params, followed, low, high)
        gradients = self._corrected({name: params[name] for name in used}, followed)
        places = [place for place, name in enumerate(params) if name not in trace.unused]
        slots = [[slot[place][low:high] for place in places] for slot in self._slots]
        descend([params[name] for name in used], gradients, slots, self._settings, step=number + 1)

    def _drawing(self, low: int, high: int, trace: StepTrace) -> ClientRandomness | None:
        """Return what draws each of these clients' own random numbers, if a step draws any."""
        if not trace.draws:
            return None
        if self._randomness is None:
            stream, number = self._settings.stream, self._settings.server_round
            seeds = [derive(stream, number, client, "training") for client in self._clients]
            self._randomness = ClientRandomness(seeds, self._device)
        self._randomness.begin(low, high, trace.draws)
        return self._randomness

    def _corrected(self, params: Tensors, followed: Tensors) -> list[torch.Tensor]:
        """Apply the algorithm's local objective, then clip each client's gradient."""
        settings, gradients = self._settings, list(followed.values())
        if settings.proximal_mu:
            gradients = [
                proximal(
                    gradient, params[name], self._stacked.trained[name], mu=settings.proximal_mu
                )
                for name, gradient in followed.items()
            ]
        if settings.gradient_clip_norm and gradients:
            squares = [each.reshape(len(each), -1).square().sum(1) for each in gradients]
            norms = torch.stack(squares).sum(0).sqrt()
            # as torch.nn.utils.clip_grad_norm_ does
            factors = (settings.gradient_clip_norm / (norms + 1e-6)).clamp(max=1.0)
            gradients = [
                gradient * factors.view(-1, *(1 for _ in gradient.shape[1:]))
                for gradient in gradients
            ]
        return gradients
