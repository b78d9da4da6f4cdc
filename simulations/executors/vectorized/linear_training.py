"""Trains many clients at once where all params are those of linear layers, and SGD's steps are
linear in the gradients.

The module runs once on the batches of all clients, as one long batch; `linear_layers` does the
rest. It gives what `stacked_training` gives, several times faster.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ....errors import DataError
from ....task import Task
from ....training.settings import TrainingSettings
from .cohort_data import CohortData
from .example_values import ExampleValues, Means, Tensors, Weights
from .first_layers import FirstOnce, FirstRepeated
from .linear_descent import LinearDescent
from .linear_layers import ClientLinear, InnerLinear
from .rowwise import is_reshaping
from .stacked_module import FLOPS_A_PARAM, StackedModule
from .stacked_training import plan_of

__all__ = ["LinearModule", "LinearModules", "train_linear"]


First = type[FirstOnce] | type[FirstRepeated] | None
"""How the layer is kept that sees the samples themselves; None is like any other."""

STEPS_ONCE_MAX = 8
"""`FirstOnce` looks back at every step before, one by one."""
CACHED_BYTES = 2 << 20
"""Weights that stay in a core's cache: their deltas' norms are cheaper than those of deltas that
were never made."""


class LinearModule:
    """A copy of a proven graph whose linear layers are those of many clients.

    Attributes:
        layers: by the name of the layer in the graph.
        names: likewise, those of its weight and bias among the module's params.
        first: the layer that sees the samples themselves, if there is one.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        layers: Mapping[str, nn.Linear],
        names: Mapping[str, tuple[str, str]],
        first: str | None,
        kind: First,
    ) -> None:
        self.names = names
        shared = [*graph.parameters(), *graph.buffers()]  # they are another round's in every round
        self.module = copy.deepcopy(graph, {id(each): each for each in shared})
        for part in self.module.modules():
            if getattr(part, "inplace", False):  # nobody else sees its input, `_once_each` found
                setattr(part, "inplace", False)  # noqa: B010 - torch's types know no such attribute
        self.layers: dict[str, ClientLinear] = {}
        self.first: FirstOnce | FirstRepeated | None = None
        for name, layer in layers.items():
            made: ClientLinear = InnerLinear(layer)
            if kind is not None and name == first:
                made = self.first = kind(layer)
            self.layers[name] = made
            parent, _, child = name.rpartition(".")
            setattr(self.module.get_submodule(parent), child, made)

    @property
    def example_flops(self) -> int:
        """What a step computes for one example; `FirstRepeated` has its products beforehand."""
        used = [each for each in self.layers.values() if not isinstance(each, FirstRepeated)]
        return FLOPS_A_PARAM * sum(each.before.numel() for each in used)

    def begin(self, clients: int, descent: LinearDescent) -> None:
        """Begin a round of so many clients."""
        for layer in self.layers.values():
            layer.begin(clients, descent)

    def activate(self, clients: int, step: int, width: int) -> None:
        """Let the next step be that of the first clients, with batches of so many rows."""
        for layer in self.layers.values():
            layer.active = clients
        if isinstance(self.first, FirstRepeated):
            self.first.select(step, width)


class LinearModules:
    """A module's copies as linear layers, made when they are first of use."""

    @classmethod
    def of(cls, stacked: StackedModule) -> LinearModules | None:
        """Return those of a module, or None if it is not proven that they do what it does: its
        graph acts on each row alone, and all that learns are linear layers, each used once."""
        if not stacked.in_rows or stacked.graph is None:
            return None
        names = {param.data_ptr(): name for name, param in stacked.trained.items()}
        layers = _linear_layers(stacked.graph)
        owned = [
            names.get(param.data_ptr(), "")
            for layer in layers.values()
            for param in layer.parameters()
        ]
        if sorted(owned) != sorted(stacked.trained) or not _once_each(stacked.graph, layers):
            return None
        return cls(stacked, stacked.graph, layers, names)

    def __init__(
        self,
        stacked: StackedModule,
        graph: torch.fx.GraphModule,
        layers: Mapping[str, nn.Linear],
        names: Mapping[int, str],
    ) -> None:
        self._graph, self._layers = graph, layers
        self._first = _first_of(graph, layers, stacked.probe)
        self._made: dict[First, LinearModule] = {}
        self._names = {
            place: (
                names[layer.weight.data_ptr()],
                "" if layer.bias is None else names[layer.bias.data_ptr()],
            )
            for place, layer in layers.items()
        }

    def choose(
        self, data: CohortData, settings: TrainingSettings, *, norms: bool = False
    ) -> LinearModule:
        """Return the module for this chunk.

        With `norms`, those of the clients' deltas will be asked for.
        """
        kind: First = None
        if self._first is not None:
            layer = self._layers[self._first]
            size_bytes = 4 * layer.weight.numel() * len(data.rows)
            if not norms or size_bytes > CACHED_BYTES:
                kind = _kind_of(layer, data, settings)
        if kind not in self._made:
            self._made[kind] = LinearModule(
                self._graph, self._layers, self._names, self._first, kind
            )
        return self._made[kind]


def _linear_layers(graph: torch.fx.GraphModule) -> dict[str, nn.Linear]:
    """Return the linear layers that learn, by name."""
    return {
        name: layer
        for name, layer in graph.named_modules(remove_duplicate=False)
        if type(layer) is nn.Linear and any(p.requires_grad for p in layer.parameters())
    }


def _once_each(graph: torch.fx.GraphModule, layers: Mapping[str, nn.Linear]) -> bool:
    """Return whether each layer is called once, its params are used by nothing else, and what is
    changed in place is used by nothing else."""
    nodes = list(graph.graph.nodes)
    called = [str(node.target) for node in nodes if node.op == "call_module"]
    if any(called.count(name) != 1 for name in layers):
        return False
    if any(not all(p.requires_grad for p in layer.parameters()) for layer in layers.values()):
        return False
    owned = {param.data_ptr() for layer in layers.values() for param in layer.parameters()}
    for node in nodes:
        if node.op == "get_attr" and _attribute(graph, node.target).data_ptr() in owned:
            return False
        if node.kwargs.get("inplace"):
            return False
        if node.op == "call_module" and getattr(graph.get_submodule(node.target), "inplace", False):
            (source,) = node.all_input_nodes
            if source.target not in layers or len(source.users) > 1:
                return False
    return True


def _attribute(graph: torch.fx.GraphModule, target: str) -> torch.Tensor:
    parent, _, name = target.rpartition(".")
    found: torch.Tensor = getattr(graph.get_submodule(parent), name)
    return found


def _first_of(
    graph: torch.fx.GraphModule, layers: Mapping[str, nn.Linear], probe: torch.Tensor
) -> str | None:
    """Return the layer that sees the samples themselves, flattened or not, if there is just one."""
    first = []
    for node in graph.graph.nodes:
        if node.op != "call_module" or node.target not in layers:
            continue
        source = node.args[0]
        while is_reshaping(graph, source):
            source = source.args[0]
        if source.op == "placeholder" and layers[node.target].in_features == probe[0].numel():
            first.append(node.target)
    return first[0] if len(first) == 1 else None


def _kind_of(layer: nn.Linear, data: CohortData, settings: TrainingSettings) -> First:
    """Say where products of samples with each other are fewer than those with a weight per
    client."""
    most = data.rows.shape[1]
    if settings.epochs == 1 and most <= STEPS_ONCE_MAX * settings.batch_size:
        both = layer.in_features + layer.out_features
        return FirstOnce if most < 4 * layer.in_features * layer.out_features / both else None
    return FirstRepeated if most < layer.in_features and not data.anew.any() else None


class LinearTrained:
    """What training made of the layers; see `example_values.Trained`."""

    def __init__(self, module: LinearModule, means: Means) -> None:
        self._layers = [(*module.names[place], layer) for place, layer in module.layers.items()]
        self.means = means

    def deltas(self, good: list[int] | None, weights: Weights) -> Tensors:
        """Return the weighted sum of the clients' deltas."""
        made: Tensors = {}
        for weight, bias, layer in self._layers:
            made[weight] = layer.weight_delta(good, weights(weight))
            if bias:
                made[bias] = layer.bias_delta(good, weights(bias))
        return made

    def each(self, low: int, high: int) -> Tensors:
        """Return the deltas of the clients `low` to `high`."""
        made: Tensors = {}
        for weight, bias, layer in self._layers:
            made[weight] = layer.weight_deltas(low, high)
            if bias:
                made[bias] = layer.bias_deltas()[low:high]
        return made

    def of_client(self, row: int) -> Tensors:
        """Return one client's params."""
        made: Tensors = {}
        for weight, bias, layer in self._layers:
            made[weight] = layer.weight_of(row)
            if bias:
                made[bias] = layer.bias_of(row)
        return made


def train_linear(
    task: Task,
    linear: LinearModule,
    data: CohortData,
    settings: TrainingSettings,
    descent: LinearDescent,
    *,
    clients: Sequence[int],
    mixing: frozenset[str] = frozenset(),
) -> LinearTrained:
    """Train the clients (node ids, in the order of `data`) from the module's params.

    `mixing` are the metrics that look across a batch.

    Guarantees: as `train_stacked`.
    Raises:
        DataError: the loss or a metric does not give one value an example.
    """
    plan = plan_of(data, settings, clients)
    device, layout = data.inputs.device, plan.layout
    values = ExampleValues(task, layout, mixing)
    rows = torch.from_numpy(plan.rows_in_order).to(device)
    linear.begin(len(clients), descent)
    if isinstance(linear.first, FirstRepeated):
        samples = data.inputs[torch.from_numpy(data.rows).to(device)].flatten(2)
        linear.first.begin_samples(samples, torch.from_numpy(plan.places).to(device))
    targets = layout.in_steps(data.targets.index_select(0, rows))
    in_steps = zip(layout.in_steps(rows), targets, layout.step_weights, strict=True)
    for step, (chosen, wanted, weights) in enumerate(in_steps):
        active, width = weights.shape
        linear.activate(active, step, width)
        outputs = linear.module(data.inputs.index_select(0, chosen))
        losses = task.loss(outputs, wanted)
        if losses.shape != (active * width,):
            raise DataError(
                f"loss must give one value per example, shape ({active * width},), got "
                f'{tuple(losses.shape)}; for torch\'s losses say reduction="none"'
            )
        torch.autograd.backward(losses, weights.flatten())
        values.take(step, 0, losses.detach().view(active, width), outputs.detach(), wanted)
    return LinearTrained(linear, values.means())
