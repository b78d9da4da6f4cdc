"""Rules that make a recorded graph do the same with less: to the bit, and on a CPU in less time.

vmap and autograd write down more than needs to be computed. Each rule keeps every value as it was;
`recorded_steps` compares the graph with the mapped step all the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

__all__ = ["simplify"]

aten = torch.ops.aten
_SAME_VALUES = (
    *(aten.view.default, aten._unsafe_view.default, aten.permute.default),
    *(aten.clone.default, aten.squeeze.dims, aten.unsqueeze.default),
)


def simplify(graph: fx.Graph, *, on_cpu: bool) -> None:
    """Apply all rules to a graph of torch's operations below autograd."""
    _stack_selected(graph)
    changed = _changed_in_place(graph)
    _stop_early(graph, changed)
    if on_cpu:
        _replace(graph, aten.max_pool2d_with_indices.default, _max_pool2d)
        _replace(graph, aten._safe_softmax.default, _safe_softmax)
    _reuse(graph, changed)
    _spare_copies(graph, changed)
    graph.eliminate_dead_code()


def _replace(graph: fx.Graph, operation: Any, function: Callable[..., Any]) -> None:
    for node in graph.nodes:
        if node.target is operation:
            node.target = function


# ------------------------------------------------------------------ what is computed in less time


def _max_pool2d(images: torch.Tensor, *settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Pool with the channels last in memory: torch then compares many at once, in the same order."""
    if images.ndim != 4:
        plain: tuple[torch.Tensor, torch.Tensor]
        plain = aten.max_pool2d_with_indices.default(images, *settings)
        return plain
    laid = images.contiguous(memory_format=torch.channels_last)
    values, places = aten.max_pool2d_with_indices.default(laid, *settings)
    return values.contiguous(), places.contiguous()


def _safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return softmax, and zeros where all of a row is masked: it is if its largest value is."""
    made: torch.Tensor = aten.softmax.int(x, dim, dtype)
    masked = x.amax(dim, keepdim=True) == -torch.inf
    return torch.where(masked, 0.0, made) if masked.any() else made


# ------------------------------------------------------------------ what need not be computed


def _stack_selected(graph: fx.Graph) -> None:
    """Make one stack of a sum of tensors each of which is zero but in a place of its own.

    Differentiating `a[0], a[1], a[2]`, as attention does, makes such a sum: each term as large as
    all of `a`.
    """
    for node in list(graph.nodes):
        if node.target is not aten.add.Tensor or any(_is_sum(user) for user in node.users):
            continue
        terms = _terms(node)
        if terms is None or len({(*map(str, each.args[1]), each.args[2]) for each in terms}) > 1:
            continue
        (shape, dimension), places = terms[0].args[1:3], [each.args[3] for each in terms]
        by_place = dict(zip(places, terms, strict=True))
        if sorted(by_place) != list(range(shape[dimension])) or len(by_place) != len(terms):
            continue
        parts = [by_place[place].args[0] for place in sorted(by_place)]
        with graph.inserting_before(node):
            stacked = graph.call_function(aten.stack.default, (parts, dimension))
        node.replace_all_uses_with(stacked)


def _is_sum(node: fx.Node) -> bool:
    return node.target is aten.add.Tensor and not node.kwargs


def _terms(node: Any) -> list[Any] | None:
    """Return the terms of a sum, None if one of them is not a selection's derivative."""
    if not isinstance(node, fx.Node):
        return None
    if node.target is aten.select_backward.default:
        return [node]
    if not _is_sum(node):
        return None
    parts = [_terms(each) for each in node.args[:2]]
    return None if None in parts else [each for part in parts for each in part or ()]


def _stop_early(graph: fx.Graph, changed: set[fx.Node]) -> None:
    """Stop the gradients of what ReLU has set to zero before they go back through max pooling.

    A pooled value is positive where the value that it was is, and there are fewer of them.
    """
    for node in list(graph.nodes):
        if node.target is not aten.threshold_backward.default or node.args[2] != 0:
            continue
        pooling, activated = _behind(node.args[0], alone=True), node.args[1]
        if getattr(pooling, "target", None) is not aten.max_pool2d_with_indices_backward.default:
            continue
        inputs, places = pooling.args[1], _behind(pooling.args[-1])
        if activated.target is not aten.relu.default or _behind(inputs) is not activated:
            continue
        if places.target is not operator.getitem:
            continue
        if _behind(places.args[0].args[0]) is not activated:
            continue
        pooled = [each for each in places.args[0].users if each.args[1] == 0]
        if not pooled or _lies(pooled[0]).shape != _lies(pooling.args[0]).shape:
            continue
        if _lies(node).stride != _lies(node.args[0]).stride:
            continue  # what follows may need it as it lies
        if _origin(pooled[0]) in changed or _origin(activated) in changed:
            continue  # by then it may be something else
        with graph.inserting_before(pooling):
            stopped = graph.call_function(node.target, (pooling.args[0], pooled[0], 0))
        pooling.update_arg(0, stopped)
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def _lies(node: fx.Node) -> Any:
    """Return how a node's tensor lay in memory when it was recorded: its shape, its strides."""
    return node.meta["tensor_meta"]


def _behind(node: Any, *, alone: bool = False) -> Any:
    """Return what a node is a view or a copy of; with `alone`, as long as nothing else uses it."""
    while node.target in _SAME_VALUES and not (alone and len(node.users) > 1):
        node = node.args[0]
    return None if alone and len(node.users) > 1 else node


def _reuse(graph: fx.Graph, changed: set[fx.Node]) -> None:
    """Compute once what is computed twice: differentiation repeats copies of the forward pass."""
    known: dict[str, fx.Node] = {}
    for node in list(graph.nodes):
        taken = [node, *node.all_input_nodes]
        if node.op != "call_function" or any(_origin(each) in changed for each in taken):
            continue
        key = repr((node.target, node.args, dict(node.kwargs)))  # nodes by their names
        if key in known:
            node.replace_all_uses_with(known[key])
            graph.erase_node(node)
        else:
            known[key] = node


def _spare_copies(graph: fx.Graph, changed: set[fx.Node]) -> None:
    """Copy no tensor of the step's own that already lies in memory as the copy would."""
    for node in graph.nodes:
        copies = node.target is aten.clone.default and len(node.args) == 1
        if not copies or node.kwargs != {"memory_format": torch.contiguous_format}:
            continue
        origin = _origin(node)
        if origin.op == "call_function" and origin not in changed:
            node.target, node.kwargs = _contiguous, {}


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous()


def _changed_in_place(graph: fx.Graph) -> set[fx.Node]:
    """Return the origins of what some operation may change."""
    changed: set[fx.Node] = set()
    for node in graph.nodes:
        draws = node.op == "call_module"  # and may fill its argument
        schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
        if draws or (schema is not None and schema.is_mutable):
            changed |= {node, *map(_origin, node.all_input_nodes)}
    return changed


def _origin(node: fx.Node) -> fx.Node:
    """Return the node whose memory a node's tensor may be in."""
    while node.op == "call_function" and _may_alias(node.target) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _may_alias(target: Any) -> bool:
    """Return whether an operation may return its first argument's memory, after the rules here."""
    if target in (operator.getitem, _contiguous, aten.clone.default, aten._unsafe_view.default):
        return True
    schema = getattr(target, "_schema", None)
    return schema is not None and any(each.alias_info for each in schema.returns)
