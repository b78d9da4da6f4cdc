"""Rules that make a recorded graph do the same with less: to the bit, and on a CPU in less time.

vmap and autograd write down more than needs to be computed. Each rule keeps every value as it was;
`recorded_steps` compares the graph with the mapped step all the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx.passes.shape_prop import TensorMetadata

__all__ = ["IN_PLACE", "simplify"]

aten = torch.ops.aten
_SAME_VALUES = (
    *(aten.view.default, aten._unsafe_view.default, aten.permute.default),
    *(aten.clone.default, aten.squeeze.dims, aten.unsqueeze.default),
)


_VIEWS = (
    *(aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.alias.default),
    *(aten.transpose.int, aten.permute.default, aten.t.default),
    *(aten.unsqueeze.default, aten.squeeze.dims, aten.squeeze.dim),
)
"""Operations that give their first argument's memory, from its first element on."""


def simplify(graph: fx.Graph, *, on_cpu: bool) -> None:
    """Apply all rules to a graph of torch's operations below autograd."""
    _skip_views(graph)
    _skip_ones(graph)
    graph.eliminate_dead_code()
    _keep_constants(graph)
    _stack_selected(graph)
    changed = _changed_in_place(graph)
    _stop_early(graph, changed)
    _activate_late(graph, changed)
    if on_cpu:
        _replace(graph, aten.max_pool2d_with_indices.default, _max_pool2d)
        _replace(graph, aten._safe_softmax.default, _safe_softmax)
    _reuse(graph, changed)
    _spare_copies(graph, changed)
    graph.eliminate_dead_code()
    _overwrite(graph)


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


def _skip_views(graph: fx.Graph) -> None:
    """Use a tensor itself where views of it come back to how it lies: the transpose of a transpose, an
    expansion to the shape that there is."""
    for node in list(graph.nodes):
        before, same = node, node
        while before.target in _VIEWS:
            before = before.args[0]
            if _are_alike(before, node):
                same = before
        if same is not node:
            node.replace_all_uses_with(same)


def _skip_ones(graph: fx.Graph) -> None:
    """Multiply nothing by one, but where the product may be overwritten."""
    kept = _changed_in_place(graph) | _returned(graph)
    for node in list(graph.nodes):
        if node.target is aten.mul.Scalar and node.args[1] == 1:
            factor = node.args[0]
        elif node.target is aten.mul.Tensor and _is_ones(node.args[0]):
            factor = node.args[1]
        elif node.target is aten.mul.Tensor and _is_ones(node.args[1]):
            factor = node.args[0]
        else:
            continue
        if _are_alike(factor, node) and node not in kept and _origin(factor) not in kept:
            node.replace_all_uses_with(factor)


def _is_ones(node: Any) -> bool:
    while isinstance(node, fx.Node) and node.target in _VIEWS:
        node = node.args[0]
    return isinstance(node, fx.Node) and node.target in (aten.ones_like.default, aten.ones.default)


def _keep_constants(graph: fx.Graph) -> None:
    """Make numbers once that each step makes anew."""
    module, kept = graph.owning_module, _changed_in_place(graph) | _returned(graph)
    for node in list(graph.nodes):
        if module is None or node.target is not aten.scalar_tensor.default or node in kept:
            continue
        name = f"number_of_{node.name}"
        module.register_buffer(name, node.target(*node.args, **node.kwargs))
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.get_attr(name))


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
        if not _are_alike(places, pooling.args[0], "shape"):
            continue
        if not _are_alike(node, node.args[0], "stride"):
            continue  # what follows may need it as it lies
        if _origin(places.args[0]) in changed or _origin(activated) in changed:
            continue  # by then it may be something else
        with graph.inserting_before(pooling):
            pooled = graph.call_function(operator.getitem, (places.args[0], 0))
            stopped = graph.call_function(node.target, (pooling.args[0], pooled, 0))
        pooling.update_arg(0, stopped)
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def _activate_late(graph: fx.Graph, changed: set[fx.Node]) -> None:
    """Pool before ReLU what is only pooled: there are fewer values afterwards.

    Where all of a window is set to zero another place of it may be taken for the largest; its gradient
    is zero (`_stop_early`).
    """
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        if node.target is not aten.relu.default or not _are_alike(node, node.args[0]):
            continue
        uses = list(_uses_behind(node))
        pools = [use for use in uses if use.target is aten.max_pool2d_with_indices.default]
        if len(pools) != 1 or changed & {node, _origin(node.args[0]), pools[0]}:
            continue
        for places in [use for use in pools[0].users if use.args[1] == 1]:
            uses += _uses_behind(places)
        if not all(use is pools[0] or _goes_back(use, node, pools[0]) for use in uses):
            continue
        for values in [use for use in pools[0].users if use.args[1] == 0]:
            with graph.inserting_after(values):
                active = graph.call_function(node.target, (values,))
            active.meta = dict(values.meta)
            values.replace_all_uses_with(active)
            active.update_arg(0, values)
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def _uses_behind(node: fx.Node) -> Iterator[fx.Node]:
    """Return what uses a tensor, as it is or as a view or a copy."""
    for user in node.users:
        if user.target in _SAME_VALUES:
            yield from _uses_behind(user)
        else:
            yield user


def _goes_back(use: Any, inputs: fx.Node, pool: fx.Node) -> bool:
    """Return whether this is a pooling's derivative, whose gradient is zero where the pooled value is."""
    if use.target is not aten.max_pool2d_with_indices_backward.default:
        return False
    gradient, given, places = use.args[0], use.args[1], use.args[-1]
    if gradient.target is not aten.threshold_backward.default or gradient.args[2] != 0:
        return False
    is_of_it = gradient.args[1].target is operator.getitem and gradient.args[1].args == (pool, 0)
    return is_of_it and _behind(given) is inputs and _behind(places).args == (pool, 1)


class _Lies(NamedTuple):
    shape: torch.Size
    dtype: torch.dtype
    stride: tuple[int, ...]


def _lies(node: fx.Node) -> _Lies | None:
    """Return how a node's tensor lay in memory when it was recorded; None of what is no tensor."""
    found = node.meta.get("tensor_meta")
    if not isinstance(found, TensorMetadata):
        return None
    return _Lies(found.shape, found.dtype, found.stride)


def _are_alike(one: Any, other: Any, *fields: str) -> bool:
    """Return whether two tensors lie alike, or are alike in these fields."""
    if not isinstance(one, fx.Node) or not isinstance(other, fx.Node):
        return False
    lie, lies = _lies(one), _lies(other)
    if lie is None or lies is None:
        return False
    return all(getattr(lie, name) == getattr(lies, name) for name in fields or _Lies._fields)


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


IN_PLACE = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.div.Tensor: aten.div_.Tensor,
    aten.mul.Scalar: aten.mul_.Scalar,
    aten.div.Scalar: aten.div_.Scalar,
    aten.neg.default: aten.neg_.default,
    aten.relu.default: aten.relu_.default,
    aten.tanh.default: aten.tanh_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.threshold_backward.default: aten.threshold_backward.grad_input,
}
"""Operations on each value alone, and what writes their results over their first argument."""
_COMMUTE = aten.add.Tensor, aten.mul.Tensor


def _overwrite(graph: fx.Graph) -> None:
    """Write results over what nothing reads any more, which is in a cache where new memory is not.

    That is the step's own memory: neither an argument's nor a result's, nor what an operation has changed
    in place before, or has drawn.
    """
    last = {node: place for place, node in enumerate(graph.nodes)}
    held: dict[fx.Node, int] = {}
    """By the result that tensors are in the memory of: the place of the last node that reads it."""
    for node in graph.nodes:
        result = _result(node)
        held[result] = max(held.get(result, 0), *(last[user] for user in node.users), last[node])
    kept = _changed_in_place(graph) | _returned(graph)
    for node in graph.nodes:
        if node.target not in IN_PLACE:
            continue
        ways = [node.args]
        if node.target in _COMMUTE and not node.kwargs and _is_real(node):
            ways.append(node.args[1::-1])
        for over, *others in ways:
            if not _are_alike(over, node):
                continue
            result = _result(over)
            if result.op != "call_function" or _origin(over) in kept or held[result] > last[node]:
                continue
            if any(_result(each) is result for each in node.all_input_nodes if each is not over):
                continue
            held[result] = held.pop(node)
            if node in kept:
                kept.add(_origin(over))
            node.target, node.args = IN_PLACE[node.target], (over, *others)
            if node.target is aten.threshold_backward.grad_input:
                node.kwargs = {"grad_input": over}
            break


def _is_real(node: fx.Node) -> bool:
    """Whether factors may change places: of complex ones, products of parts are rounded in their order."""
    lies = _lies(node)
    return lies is not None and not lies.dtype.is_complex


def _changed_in_place(graph: fx.Graph) -> set[fx.Node]:
    """Return the origins of what some operation may change, or return as its result.

    What an operation that is not torch's does is known from its schema alone, which others write.
    """
    changed: set[fx.Node] = set()
    for node in graph.nodes:
        draws = node.op == "call_module"  # and may fill its argument
        if draws or (isinstance(node.target, torch._ops.OpOverload) and _may_change(node.target)):
            changed |= {node, *map(_origin, node.all_input_nodes)}
    return changed


def _may_change(operation: torch._ops.OpOverload) -> bool:
    return operation.namespace != "aten" or operation._schema.is_mutable


def _returned(graph: fx.Graph) -> set[fx.Node]:
    """Return the origins of the results, which whoever gets them may change."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    return set(map(_origin, output.all_input_nodes))


def _origin(node: fx.Node) -> fx.Node:
    """Return the node whose memory a node's tensor may be in."""
    while node.op == "call_function" and _may_alias(node.target) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _result(node: fx.Node) -> fx.Node:
    """Return the node whose memory a node's tensor may be in, which of several results is one."""
    while node is not _origin(node):
        source = node.all_input_nodes[0]
        if node.target is operator.getitem and not _may_alias(source.target):
            break
        node = source
    return node


def _may_alias(target: Any) -> bool:
    """Return whether an operation may return its first argument's memory, after the rules here."""
    if target in (operator.getitem, _contiguous, aten.clone.default, aten._unsafe_view.default):
        return True
    schema = getattr(target, "_schema", None)
    return schema is not None and any(each.alias_info for each in schema.returns)
