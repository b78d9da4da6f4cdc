"""One task's module for many clients at once: params with a leading client axis.

A client's step is written for one client, differentiated by `torch.func.grad` and then mapped
over the clients by `torch.func.vmap`: each layer runs once, as one kernel, for all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.func import grad, vmap

from ....errors import DataError
from ....task import Task
from ....training.algorithms.algorithms import LocalAlgorithm
from ....training.algorithms.corrections import zero_client_state
from ....training.algorithms.objective import TrainingStep, features_of
from ....training.functional import call_with
from ....training.module_params import owners_of
from .client_randomness import ClientRandomness
from .linear_descent import LinearDescent
from .low_rank import LowRankLinear, LowRankWeight, layers_called_once, saves, with_low_rank
from .recorded_steps import RecordedSteps
from .rowwise import function_of_examples, rowwise_function, rowwise_graph
from .stacked_layers import StackedLayers
from .step_trace import StepTrace, trace_step

__all__ = ["FLOPS_A_PARAM", "StackedModule", "StepResult", "Tensors"]

Tensors = dict[str, torch.Tensor]

FLOPS_A_PARAM = 6
"""Of a step, for each example: a product and a sum, and two of each for the derivatives."""


class StepResult(NamedTuple):
    """What one step gives: `gradients` by param (clients, ...), `losses` (clients, batch), `outputs`
    (clients, batch, ...), and what layers without a weight per client have `seen`, by their place."""

    gradients: Tensors
    losses: torch.Tensor
    outputs: torch.Tensor
    seen: Tensors


class StackedModule:
    """A module whose trained params and buffers are given from outside, a row a client.

    Attributes:
        module: one client's.
        probe: some inputs that it was tried with.
        trained: the params that training changes, as the module holds them.
        graph: its forward pass, if that is proven to act on each row alone; else None.
        in_rows: whether module and loss are proven so, and draw no random numbers: then a batch may
            be padded, and hold the rows of several clients.
        mixing_metrics: the metrics that are not proven so.
        example_bytes: what the forward pass makes for one example.
        example_flops: what a step computes for one example, at least `FLOPS_A_PARAM`.
        owners: for each name of the state_dict the param or buffer that it is: tied weights have
            several names.
        low_rank: layers that keep no weight per client, by their place in the module.
    """

    low_rank: Mapping[str, nn.Linear] = MappingProxyType({})

    def __init__(
        self,
        task: Task,
        module: torch.nn.Module,
        probe: tuple[torch.Tensor, torch.Tensor],
        *,
        precision: str,
        algorithm: LocalAlgorithm | None = None,
        shared: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """`probe` are three inputs of the task and their targets: the module is tried with them.

        `algorithm` has a loss of its own, which may look at the `shared` auxiliary tensors.

        Raises:
            DataError: its step cannot be mapped over clients, or a param has complex values; whatever
                the module raises.
        """
        self._task = task
        self._algorithm = algorithm
        self.probe, targets = probe
        self._probe_targets = targets
        self.module = module.train()
        self._autocast = torch.bfloat16 if precision == "bf16" else None
        self.trained = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}
        if complex_ := [name for name, each in module.state_dict().items() if each.is_complex()]:
            raise DataError(f"{complex_[0]!r} of the model has complex values")
        self._fixed = {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad}
        self.buffers = dict(module.named_buffers())
        self._device = self.probe.device
        self.owners = owners_of(module)
        self._begun: Tensors = {}
        self._shared: Mapping[str, torch.Tensor] = {}
        self.begin_round(algorithm, shared or {})
        self.in_rows = False
        self._traces: dict[int, StepTrace] = {}
        trace = self.trace(self.probe, targets)
        self.example_bytes = trace.bytes // len(targets)
        params = sum(each.numel() for each in self.trained.values())
        self.example_flops = max(trace.flops // len(targets), FLOPS_A_PARAM * params)
        unproven = trace.draws or algorithm is not None
        self.graph = None if unproven else rowwise_graph(module, self.probe)
        outputs = trace.outputs
        functions = {
            "": task.loss,
            **{name: function_of_examples(metric) for name, metric in task.metrics.items()},
        }
        mixing = {n for n, f in functions.items() if not rowwise_function(f, outputs, targets)}
        self.in_rows = self.graph is not None and "" not in mixing
        self.mixing_metrics = frozenset(mixing - {""})
        self._mapped = vmap(
            grad(self._loss_of_one, has_aux=True), in_dims=0, randomness="different"
        )
        self._recorded = RecordedSteps(self._flat_step)
        self._names: tuple[tuple[str, ...], ...] = ()
        """Of the params, buffers, and what clients keep besides, in a flat step."""

    def keeping_low_rank(self, rows: int) -> StackedModule:
        """Return this module with large linear layers that keep no weight per client, for clients who
        train on so many rows in a round; itself where there are none, or this is not proven right."""
        if self.graph is None or not self.in_rows:
            return self
        once = layers_called_once(self.graph, self.module, self.trained)
        unused = frozenset[str]().union(*(each.unused for each in self._traces.values()))
        places = {
            name: layer
            for name, layer in once.items()
            if saves(layer, rows) and f"{name}.weight" not in unused
        }
        if not places:
            return self
        made = copy.copy(self)
        made.low_rank, made.module = places, with_low_rank(self.module, places)
        weights = {f"{name}.weight" for name in places}
        made.trained = {n: each for n, each in self.trained.items() if n not in weights}
        befores = {f"{name}.before": layer.weight.detach() for name, layer in places.items()}
        made._fixed = {**self._fixed, **befores}
        made._mapped = vmap(
            grad(made._loss_of_one, has_aux=True), in_dims=0, randomness="different"
        )
        made._recorded = RecordedSteps(made._flat_step)
        try:
            made._try_low_rank()
        except Exception:  # such as a sample of several rows: then the layers keep their weights
            return self
        return made

    def _try_low_rank(self) -> None:
        """Make a step of two clients with the probe.

        Raises:
            whatever cannot be mapped.
        """
        inputs, targets = (
            each.expand(2, *each.shape) for each in (self.probe, self._probe_targets)
        )
        params, buffers = self.stack(2)
        own: Tensors = {}
        for place, layer in self.low_rank.items():
            state = LowRankWeight(layer)
            state.begin_rows(2, LinearDescent(rate=0.1), len(self.probe))
            own |= {f"{place}.{name}": each for name, each in state.history(2).items()}
            tap = layer.weight.new_zeros(2, len(self.probe), layer.out_features)
            params[f"{place}.tap"] = tap.detach()
        weights = torch.ones(targets.shape[:2], device=self._device)
        self._step(params, buffers, inputs, targets, weights, own)

    def trace(self, inputs: torch.Tensor, targets: torch.Tensor) -> StepTrace:
        """Return what a step of one client does with a batch of so many examples.

        Raises:
            DataError: it cannot be mapped over clients; whatever the module raises.
        """
        if self.in_rows:  # then it does the same, however large the batch is
            return next(iter(self._traces.values()))
        size = len(targets)
        if size not in self._traces:
            names, own = self._features, self._first_state()
            with self._precision(), features_of(self.module, names) as features:
                self._traces[size] = trace_step(
                    self.module,
                    self.trained,
                    {**self._fixed, **self.buffers},
                    inputs,
                    lambda outputs: self._losses(inputs, outputs, targets, features, own),
                    self._task.loss,
                )
        return self._traces[size]

    def begin_round(
        self, algorithm: LocalAlgorithm | None, shared: Mapping[str, torch.Tensor]
    ) -> None:
        """Let an algorithm's loss, with its settings of the round, look at the params that the module
        has now, and at these auxiliary tensors."""
        self._algorithm = algorithm
        if algorithm is not None:
            held = {**self._fixed, **self.buffers, **self.trained}
            self._begun = {name: tensor.detach().clone() for name, tensor in held.items()}
            self._shared = shared

    def _first_state(self) -> Tensors:
        if self._algorithm is None:
            return {}
        begun = {name: self._begun[name] for name in self.trained}
        return zero_client_state(self._algorithm, begun, self._device)

    @property
    def _features(self) -> tuple[str, ...]:
        return () if self._algorithm is None else self._algorithm.features

    @property
    def mixes_examples(self) -> bool:
        """Whether an example's gradient may depend on the others of its batch."""
        return not self.in_rows

    def stack(self, clients: int) -> tuple[Tensors, Tensors]:
        """Return the trained params and the buffers, a row for each of `clients`."""
        return (
            {name: _repeat(tensor, clients) for name, tensor in self.trained.items()},
            {name: _repeat(tensor, clients) for name, tensor in self.buffers.items()},
        )

    def step(
        self,
        params: Tensors,
        buffers: Tensors,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor,
        own: Tensors | None = None,
        randomness: ClientRandomness | None = None,
    ) -> StepResult:
        """Return the gradients of each client's weighted loss; buffers are updated in place.

        `own` is what the clients keep, for an algorithm's loss or for the layers of `low_rank`;
        `randomness` draws for them.

        Shapes: inputs (clients, batch, ...), targets and `own` likewise, weights (clients, batch).
        """
        if self._algorithm is None:
            self._names = tuple(params), tuple(buffers), tuple(own or {})
            given = (*params.values(), *buffers.values(), *(own or {}).values())
            made = self._recorded.run((inputs, targets, weights, *given), randomness)
            losses, outputs = made[:2]
            gradients = dict(zip(params, made[2:], strict=False))
            seen = dict(zip(self.low_rank, made[2 + len(params) :], strict=True))
        else:
            with randomness or nullcontext():
                gradients, losses, outputs, seen = self._step(
                    params, buffers, inputs, targets, weights, own or {}
                )
        return StepResult(_apart(gradients), losses, outputs, seen)

    def _flat_step(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Make a step of tensors alone: inputs, targets, weights, and those that `_names` names."""
        inputs, targets, weights, *given = tensors
        left = iter(given)
        params, buffers, own = ({name: next(left) for name in names} for names in self._names)
        made = self._step(params, buffers, inputs, targets, weights, own)
        return [made.losses, made.outputs, *made.gradients.values(), *made.seen.values()]

    def _step(
        self,
        params: Tensors,
        buffers: Tensors,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor,
        own: Tensors,
    ) -> StepResult:
        with self._precision():
            gradients, (losses, outputs, after, seen) = self._mapped(
                params, buffers, inputs, targets, weights, own
            )
        for name, values in after.items():  # where a module assigned a new buffer to the old name
            if values.data_ptr() != buffers[name].data_ptr():
                buffers[name].copy_(values)
        return StepResult({name: gradients[name] for name in params}, losses, outputs, seen)

    def example_gradients(
        self, params: Tensors, inputs: torch.Tensor, targets: torch.Tensor
    ) -> Tensors:
        """Return the gradient of every single example's loss, of a module without buffers.

        Shapes: inputs (clients, batch, ...), targets likewise; gradients (clients, batch, ...).
        """
        ones = torch.ones(1, device=self._device)

        def loss_of(params: Tensors, example: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return self._loss_of_one(params, {}, example[None], target[None], ones, {})[0]

        of_batch = vmap(grad(loss_of), in_dims=(None, 0, 0), randomness="different")
        gradients: Tensors = vmap(of_batch, randomness="different")(params, inputs, targets)
        return gradients

    def _loss_of_one(
        self,
        params: Tensors,
        buffers: Tensors,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor,
        own: Tensors,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor, Tensors, Tensors]]:
        """Compute one client's weighted loss; also its examples' losses, the outputs, the buffers
        afterwards, and what the layers of `low_rank` have seen."""
        everything = {**params, **self._fixed, **buffers, **(own if self.low_rank else {})}
        with features_of(self.module, self._features) as features, StackedLayers():
            outputs = call_with(self.module, everything, inputs)
        losses = self._losses(inputs, outputs, targets, features, own)
        if losses.shape != weights.shape:
            raise DataError(
                f"loss must give one value per example, shape {tuple(weights.shape)}, got "
                f'{tuple(losses.shape)}; for torch\'s losses say reduction="none"'
            )
        after = {name: everything[name].detach() for name in buffers}
        seen = {name: self._taken(name) for name in self.low_rank}
        return (losses * weights).sum(), (losses.detach(), outputs.detach(), after, seen)

    def _taken(self, place: str) -> torch.Tensor:
        """Take what a layer without a weight of its own has seen."""
        layer = self.module.get_submodule(place)
        assert isinstance(layer, LowRankLinear) and layer.seen is not None
        seen, layer.seen = layer.seen.detach(), None
        return seen

    def _losses(
        self,
        inputs: torch.Tensor,
        outputs: torch.Tensor,
        targets: torch.Tensor,
        features: Mapping[str, torch.Tensor],
        own: Tensors,
    ) -> torch.Tensor:
        if self._autocast is not None and outputs.dtype == self._autocast:
            outputs = outputs.float()
        if self._algorithm is None:
            return self._task.loss(outputs, targets)
        return self._algorithm.loss(
            TrainingStep(
                module=self.module,
                inputs=inputs,
                outputs=outputs,
                targets=targets,
                features=dict(features),
                start=self._begun,
                client_state=own,
                shared=self._shared,
                task_loss=self._task.loss,
            )
        )

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device.type, self._autocast, enabled=bool(self._autocast))


def _repeat(tensor: torch.Tensor, clients: int) -> torch.Tensor:
    return tensor.detach().unsqueeze(0).expand(clients, *tensor.shape).clone()


def _apart(gradients: Tensors) -> Tensors:
    """Return gradients that can be overwritten one by one: those of two params that are added to
    each other, as the two biases of an LSTM, are one tensor, and those of a sum are expanded."""
    seen: set[int] = set()
    made = {}
    for name, each in gradients.items():
        shares = each.data_ptr() in seen or 0 in each.stride()
        made[name] = each.clone(memory_format=torch.contiguous_format) if shares else each
        seen.add(each.data_ptr())
    return made
