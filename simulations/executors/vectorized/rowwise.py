"""Proves that a module, or a loss, acts on each row of its batch alone and in order.

The forward pass is traced by torch.fx into a graph of operations. Every one of them must be in the
tables below, which hold only what maps row i of its inputs to row i of its output, whatever the
other rows are and however many there are; shapes are followed for batches of two sizes. What is
not in the tables is not proven, whatever it does: a permutation, a mean over the batch, control
flow over the data, a layer of somebody's own with an operation that is not known here.

The derivative must be that of the graph too: the module's backward pass has the same steps, and none
is somebody's own.

What is proven may be run on the rows of several clients as one batch, and on rows of padding.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ....randomness.seeded import generators_now, seeded
from ....task import AdditiveMetric
from ....training.additive_metrics import AUROC, F1, CalibrationError
from ....training.classification import accuracy, cross_entropy
from ....training.module_state import PythonState
from .step_trace import OwnGenerators

__all__ = ["function_of_examples", "is_reshaping", "rowwise_function", "rowwise_graph"]

KNOWN = (accuracy, cross_entropy)
"""Functions of (outputs, targets) that look at their arguments' dtypes, which a trace cannot."""

KNOWN_METRICS = (AUROC, F1, CalibrationError)

_ELEMENTWISE_LAYERS = (
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Tanh,
    nn.Softplus,
    nn.Softsign,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Tanhshrink,
)
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # fmt: skip
_ROW_LAYERS: Mapping[type[nn.Module], int] = {
    nn.Linear: 2, nn.Embedding: 1, nn.PReLU: 2,
    nn.Conv1d: 3, nn.Conv2d: 4, nn.Conv3d: 5, nn.ConvTranspose2d: 4,
    nn.MaxPool1d: 3, nn.MaxPool2d: 4, nn.AvgPool1d: 3, nn.AvgPool2d: 4,
    nn.AdaptiveAvgPool1d: 3, nn.AdaptiveAvgPool2d: 4,
    nn.AdaptiveMaxPool1d: 3, nn.AdaptiveMaxPool2d: 4,
}  # fmt: skip
"""Layers that take rows with so many dimensions, the batch's included (or more, for those that
work on the last one): with fewer, the first would be another one."""
_ANY_MORE = (nn.Linear, nn.Embedding, nn.PReLU)
_POOLS: Mapping[Any, int] = {
    functional.max_pool1d: 3, functional.max_pool2d: 4, functional.avg_pool2d: 4,
    functional.adaptive_avg_pool2d: 4, functional.adaptive_max_pool2d: 4,
}  # fmt: skip

_ELEMENTWISE = {
    torch.relu, functional.relu, functional.gelu, functional.silu, functional.elu, functional.selu,
    functional.leaky_relu, functional.softplus, functional.hardtanh, functional.relu6,
    functional.sigmoid, functional.tanh, functional.logsigmoid,
    torch.tanh, torch.sigmoid, torch.exp, torch.log, torch.log1p, torch.sqrt, torch.square,
    torch.abs, torch.neg, torch.clamp, torch.sin, torch.cos, operator.neg,
    operator.add, operator.sub, operator.mul, operator.truediv, operator.pow,
    operator.eq, operator.ne, operator.gt, operator.ge, operator.lt, operator.le,
    torch.add, torch.sub, torch.mul, torch.div, torch.eq,
    "relu", "tanh", "sigmoid", "exp", "log", "sqrt", "square", "abs", "neg", "clamp", "float",
    "double", "half", "bfloat16", "long", "int", "bool", "eq", "ne", "gt", "lt", "add", "sub",
    "mul", "div", "contiguous", "detach", "clone", "type_as", "to",
}  # fmt: skip
_RESHAPING = {torch.flatten, torch.reshape, "flatten", "view", "reshape"}
_OVER_A_DIMENSION = {
    torch.softmax, functional.softmax, functional.log_softmax, torch.log_softmax, torch.sum,
    torch.mean, torch.argmax, torch.squeeze, torch.unsqueeze,
    "softmax", "log_softmax", "sum", "mean", "argmax", "squeeze", "unsqueeze",
}  # fmt: skip
_LOSSES = {
    functional.cross_entropy, functional.nll_loss, functional.mse_loss, functional.l1_loss,
    functional.smooth_l1_loss, functional.huber_loss, functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
}  # fmt: skip


def rowwise_graph(module: nn.Module, inputs: torch.Tensor) -> torch.fx.GraphModule | None:
    """Return the module's forward pass as a graph that acts on each row alone, or None if that is
    not proven. The graph shares the module's layers.

    `inputs` are at least three rows. Proven is the mode, training or evaluation, that the module
    is in.
    """
    if any(_has_hooks(each) for each in module.modules()):
        return None
    with _left_as_it_was(module) as generators:
        graph = _traced(module)
        if graph is None or not _proven(graph, [(inputs[:2],), (inputs[:3],)]):
            return None
        if module.training and not _differentiated_alike(module, graph, inputs[:2]):
            return None
    return None if generators.drew else graph  # numbers drawn in a trace are constants of its graph


def rowwise_function(
    function: Callable[..., torch.Tensor], outputs: torch.Tensor, targets: torch.Tensor
) -> bool:
    """Return whether a loss or a metric is proven to give each row's value of this row alone.

    Shapes: at least three rows each.
    """
    if function in KNOWN or type(getattr(function, "__self__", None)) in KNOWN_METRICS:
        return True

    class ProbedInput(nn.Module):
        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return function(outputs, targets)

    if isinstance(function, nn.Module) and any(map(_has_hooks, function.modules())):
        return False
    asked = ProbedInput()
    if isinstance(function, nn.Module):
        asked.function = function
    sizes = [(outputs[:rows], targets[:rows]) for rows in (2, 3)]
    with _left_as_it_was(asked, function) as generators:
        graph = _traced(asked)
        if graph is None or not _proven(graph, sizes, vectors=True):
            return False
        alike = _differentiated_alike(asked, graph, outputs[:2], targets[:2])
    return alike and not generators.drew


def function_of_examples(metric: Any) -> Callable[..., torch.Tensor]:
    """Return the function of (outputs, targets) that gives a metric's value, or values, of each example."""
    found: Callable[..., torch.Tensor] = (
        metric.statistics if isinstance(metric, AdditiveMetric) else metric
    )
    return found


def is_reshaping(graph: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    """Return whether an operation of a proven graph gives the values of its rows, reshaped."""
    if node.op == "call_module":
        return type(graph.get_submodule(str(node.target))) is nn.Flatten
    return node.target in _RESHAPING


def _has_hooks(module: nn.Module) -> bool:
    kept = (module._forward_hooks, module._forward_pre_hooks)
    return any(kept) or bool(module._backward_hooks or module._backward_pre_hooks)


def _traced(module: nn.Module) -> torch.fx.GraphModule | None:
    leaves = (*_ROW_LAYERS, *_ELEMENTWISE_LAYERS, *_DROPOUT, *_BATCH_NORMS, nn.Flatten)
    leaves = (*leaves, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.Softmax, nn.LogSoftmax)

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return type(m) in leaves

    root = nn.Sequential(module) if type(module) in leaves else module  # which is not looked into
    tracer = Tracer()
    try:
        return torch.fx.GraphModule(root, tracer.trace(root))
    except Exception:  # whatever a forward pass does that cannot be traced: it is not proven
        return None


@contextmanager
def _left_as_it_was(module: nn.Module, function: object = None) -> Iterator[OwnGenerators]:
    """Undo what a forward pass does to the buffers and attributes of a module, and of a loss or a
    metric, and to generators; what is yielded knows whether it can have drawn random numbers."""
    held = [PythonState(each, buffers=True) for each in (module, function)]
    try:
        with seeded(0), OwnGenerators() as generators:
            others = generators_now()
            yield generators
            generators.drew |= generators_now() != others
    finally:
        for each in held:
            each.restore()


def _differentiated_alike(
    module: nn.Module, graph: torch.fx.GraphModule, *batch: torch.Tensor
) -> bool:
    """Return whether the derivative of the graph is that of the module: a trace looks through
    functions with a derivative of their own, and does not see where gradients are switched off."""
    given = [each.clone() for each in batch]
    if given[0].is_floating_point():
        given[0].requires_grad_()
    with torch.enable_grad():
        steps = [_derivative(run(*[each * 1 for each in given])) for run in (module, graph)]
    return steps[0] is not None and steps[0] == steps[1]


def _derivative(made: torch.Tensor) -> list[tuple[str, int]] | None:
    """Return the steps of the backward pass, or None if one of them is somebody's own."""
    found, left, seen = [], [made.grad_fn], set()
    while left:
        node = left.pop()
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return None
        found.append((type(node).__name__, id(getattr(node, "variable", None))))
        for each, _ in node.next_functions if node is not None else ():
            if each is not None and each not in seen:
                seen.add(each)
                left.append(each)
    return found


def _proven(
    graph: torch.fx.GraphModule,
    batches: Sequence[tuple[torch.Tensor, ...]],
    *,
    vectors: bool = False,
) -> bool:
    """Return whether every operation is known, for batches of these sizes; with `vectors` the
    result must be one value a row."""
    try:
        with torch.no_grad():
            return all(_Proof(graph, batch).holds(vectors=vectors) for batch in batches)
    except _Unproven:
        return False
    except Exception:  # what the layers raise on these inputs, training will raise too
        return False


class _Unproven(Exception):
    """An operation is not known to act on each row alone."""


class _Proof(torch.fx.Interpreter):
    """Runs a graph and checks each operation on the way.

    A value is rows (a tensor whose first dimension is the batch's, in its order), the batch's size
    or shape, or does not depend on the batch.
    """

    def __init__(self, graph: torch.fx.GraphModule, batch: tuple[torch.Tensor, ...]) -> None:
        super().__init__(graph)
        self._nodes = list(graph.graph.nodes)
        self._batch = batch
        self._count = len(batch[0])
        self._rows: set[torch.fx.Node] = set()
        self._sizes: set[torch.fx.Node] = set()

    def holds(self, *, vectors: bool) -> bool:
        """Return whether the result is rows; an operation that is not known raises."""
        made = self.run(*(each.clone() for each in self._batch))
        result = next(node for node in self._nodes if node.op == "output").args[0]
        if not isinstance(result, torch.fx.Node) or result not in self._rows:
            return False
        return not vectors or made.shape == (self._count,)

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run an operation, and classify its value."""
        value = super().run_node(n)
        if n.op == "placeholder":
            self._rows.add(n)
        elif n.op in ("call_module", "call_function", "call_method"):
            self._check(n, value)
        return value

    def _check(self, n: torch.fx.Node, value: Any) -> None:
        given = n.all_input_nodes
        if not any(node in self._rows or node in self._sizes for node in given):
            raise _Unproven  # it may be anything: a draw, a count
        if self._is_size(n):
            self._sizes.add(n)
            return
        known = self._layer(n) if n.op == "call_module" else self._operation(n, value)
        if not known or not isinstance(value, torch.Tensor) or value.shape[:1] != (self._count,):
            raise _Unproven
        self._rows.add(n)

    def _is_size(self, n: torch.fx.Node) -> bool:
        """Return whether a value is the batch's shape, or the number of its rows."""
        if n.op == "call_function" and n.target is getattr:
            return bool(n.args[1] == "shape")
        if n.op == "call_method" and n.target == "size":
            return bool(not n.args[1:] or n.args[1] == 0)
        if n.op == "call_function" and n.target is operator.getitem:
            return bool(n.args[0] in self._sizes and n.args[1] == 0)
        return False

    def _layer(self, n: torch.fx.Node) -> bool:
        layer, shape = self.fetch_attr(str(n.target)), self._shape(n.args[0])
        if len(n.args) != 1 or n.kwargs or shape is None:
            return False
        kind = type(layer)
        if kind in _ROW_LAYERS:
            needed = _ROW_LAYERS[kind]
            enough = len(shape) >= needed if kind in _ANY_MORE else len(shape) == needed
            return enough and not getattr(layer, "max_norm", None)
        if kind is nn.Flatten:
            return bool(layer.start_dim >= 1)
        if kind in (nn.LayerNorm, nn.RMSNorm):
            return len(layer.normalized_shape) < len(shape)
        if kind is nn.GroupNorm:
            return len(shape) >= 2
        if kind in _DROPOUT:
            return bool(not layer.training or layer.p == 0)
        if kind in _BATCH_NORMS:
            return bool(not layer.training and layer.running_mean is not None)
        if kind in (nn.Softmax, nn.LogSoftmax):
            return isinstance(layer.dim, int) and _inner(layer.dim, len(shape))
        return kind in _ELEMENTWISE_LAYERS

    def _operation(self, n: torch.fx.Node, value: Any) -> bool:
        rows = [node for node in n.all_input_nodes if node in self._rows]
        first = n.args[0] if n.args else None
        if n.target in _RESHAPING:
            keeps = n.target not in (torch.flatten, "flatten") or _start(n) >= 1
            return len(rows) == 1 and first in self._rows and keeps
        if any(node in self._sizes for node in n.all_input_nodes) or "out" in n.kwargs:
            return False
        if n.target in _ELEMENTWISE:
            return self._aligned(n.all_input_nodes)
        if n.target in _OVER_A_DIMENSION:
            shape, dimension = self._shape(first), _dimension(n)
            return shape is not None and dimension is not None and _inner(dimension, len(shape))
        if n.target is functional.linear:
            shape = self._shape(first)
            return len(rows) == 1 and shape is not None and len(shape) >= 2
        if n.target in _LOSSES:
            return n.kwargs.get("reduction") == "none" and len(rows) == len(n.all_input_nodes) == 2
        if n.target in _POOLS:
            shape = self._shape(first)
            return shape is not None and len(shape) == _POOLS[n.target]
        return False

    def _shape(self, argument: Any) -> torch.Size | None:
        """Return the shape of rows, None of anything else."""
        if not isinstance(argument, torch.fx.Node) or argument not in self._rows:
            return None
        return torch.Size(self.env[argument].shape)

    def _aligned(self, nodes: Sequence[torch.fx.Node]) -> bool:
        """Return whether what is combined are rows of as many dimensions, or params that are the
        same for every row: with other dimensions the batch of one would meet another's."""
        shapes = [self._shape(node) for node in nodes if node in self._rows]
        most = len(shapes[0] or ())
        if any(shape is None or len(shape) != most for shape in shapes):
            return False
        others = [self.env[node] for node in nodes if node not in self._rows]
        return all(isinstance(each, torch.Tensor) and each.ndim < most for each in others)


def _start(n: torch.fx.Node) -> int:
    found = n.kwargs.get("start_dim", n.args[1] if len(n.args) > 1 else 0)
    return found if isinstance(found, int) else 0


def _dimension(n: torch.fx.Node) -> int | None:
    found = n.kwargs.get("dim", n.args[1] if len(n.args) > 1 else None)
    return found if isinstance(found, int) else None


def _inner(dimension: int, dimensions: int) -> bool:
    """Return whether a dimension is another than the first; a new one is counted too."""
    return dimensions >= 2 and (dimension >= 1 or -dimensions < dimension < 0)
