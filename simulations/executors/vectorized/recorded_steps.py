"""Steps of many clients, recorded as the operations of torch that they come down to, and replayed.

Mapping and differentiating a step costs some microseconds for every operation, several times over: in
vmap's layers, autograd and Python's modules. A step with the same shapes comes down to the same
operations every time: vmap refuses control flow over the data, and a module that changes its own
attributes is refused before (`step_trace`). So a step that recurs is recorded as a graph below vmap
and autograd, and the graph runs in its place.

A recording is proven before it counts: it must give the mapped step's results to the bit, on the step
that it was recorded of and on a later one, which has other data. What cannot be recorded, or differs,
stays mapped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from .client_randomness import ClientRandomness
from .graph_rules import simplify
from .step_trace import Generator, may_draw

__all__ = ["RecordedSteps"]

Step = Callable[..., list[torch.Tensor]]
"""Takes tensors, of which it may change some in place, and returns others."""

RECORD_AFTER = 4
"""Recording takes as long as 15 to 60 steps: it is for shapes that recur, round after round."""
RECORDINGS_MAX = 8
SHAPES_MAX = 1024

aten = torch.ops.aten
_READS = (aten._local_scalar_dense.default, aten.item.default, aten.equal.default)
"""What reads a value into Python, where anything may depend on it."""


class RecordedSteps:
    """A step, and its recordings by the shapes of what it takes."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._uses: dict[tuple[Any, ...], int] = {}
        self._recordings: dict[tuple[Any, ...], _Recording | None] = {}

    def run(
        self, tensors: Sequence[torch.Tensor], randomness: ClientRandomness | None
    ) -> list[torch.Tensor]:
        """Make a step; its operations that draw take their numbers from `randomness`.

        Guarantees: results and changes in place are those of the mapped step.
        """
        key = tuple((each.shape, each.stride(), each.dtype) for each in tensors)
        recording = self._recordings.get(key)
        if recording is not None and recording.is_proven:
            return recording.run(tensors, randomness)
        if recording is None and not self._recurs(key):
            return self._mapped(tensors, randomness)
        is_new = recording is None
        if recording is None:
            recording = _Recording.of(self._step, tensors)
        copies = [each.clone() for each in tensors]
        replayed = None if recording is None else _replayed(recording, copies, randomness)
        made = self._mapped(tensors, randomness)
        if recording is None or replayed is None or not _alike(replayed, copies, made, tensors):
            self._recordings[key] = None
            return made
        self._recordings[key] = recording
        recording.is_proven = not is_new
        return made

    def _recurs(self, key: tuple[Any, ...]) -> bool:
        """Count a use of these shapes, and return whether they are to be recorded now."""
        if key in self._recordings or len(self._recordings) >= RECORDINGS_MAX:
            return False
        if len(self._uses) >= SHAPES_MAX:
            self._uses.clear()
        self._uses[key] = self._uses.get(key, 0) + 1
        return self._uses[key] == RECORD_AFTER

    def _mapped(
        self, tensors: Sequence[torch.Tensor], randomness: ClientRandomness | None
    ) -> list[torch.Tensor]:
        if randomness is None:
            return self._step(*tensors)
        with randomness:
            return self._step(*tensors)


def _replayed(
    recording: _Recording, tensors: Sequence[torch.Tensor], randomness: ClientRandomness | None
) -> list[torch.Tensor] | None:
    """Return what a recording gives, None if it raises; nobody's random numbers are used up."""
    mark = None if randomness is None else randomness.mark()
    try:
        return recording.run(tensors, randomness)
    except Exception:  # whatever it is: the mapped step counts
        return None
    finally:
        if randomness is not None and mark is not None:
            randomness.back_to(mark)


def _alike(*both: Sequence[torch.Tensor]) -> bool:
    """Return whether the results of two steps, and what they changed in place, are equal; a value that
    is no number equals another."""
    replayed, copies, made, tensors = both
    if len(replayed) != len(made):
        return False
    pairs = zip((*replayed, *copies), (*made, *tensors), strict=True)
    return all(
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        for one, other in pairs
    )


class _Recording:
    """A step's graph of operations below vmap and autograd.

    Attributes:
        is_proven: whether it gave the mapped step's results on data that it was not recorded of.
    """

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.is_proven = False
        self._draws = [each for each in graph.modules() if isinstance(each, _DrawingOperation)]
        self._graph = graph

    @classmethod
    def of(cls, step: Step, tensors: Sequence[torch.Tensor]) -> _Recording | None:
        """Record a step on copies of these tensors, or return None if that cannot be."""
        generator = Generator(tensors[0].device)
        before = generator.get()
        try:
            graph = make_fx(step, tracing_mode="real")(*(each.clone() for each in tensors))
            return cls(_prepared(graph, on_cpu=tensors[0].device.type == "cpu"))
        except Exception:  # whatever it is: the mapped step counts
            return None
        finally:
            generator.set(before)

    def run(
        self, tensors: Sequence[torch.Tensor], randomness: ClientRandomness | None
    ) -> list[torch.Tensor]:
        """Make the step."""
        for each in self._draws:
            each.randomness = randomness
        with torch.no_grad():
            made: list[torch.Tensor] = list(self._graph.forward(*tensors))
        return made


class _NotRecordableError(Exception):
    """A graph has an operation that may give something else in another step."""


class _DrawingOperation(torch.nn.Module):
    """An operation that may draw random numbers."""

    def __init__(self, operation: Any) -> None:
        super().__init__()
        self._operation = operation
        self.randomness: ClientRandomness | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.randomness is None:
            return self._operation(*args, **kwargs)
        return self.randomness.drawn(self._operation, args, kwargs)


def _prepared(graph: torch.fx.GraphModule, *, on_cpu: bool) -> torch.fx.GraphModule:
    """Return a graph that does the same with less, and whose draws can be led elsewhere."""
    for node in list(graph.graph.nodes):
        if node.op not in ("call_function", "placeholder", "get_attr", "output"):
            raise _NotRecordableError
        if node.op != "call_function":
            continue
        is_operation = isinstance(node.target, torch._ops.OpOverload)
        if node.target in _READS or not (is_operation or node.target is operator.getitem):
            raise _NotRecordableError
        if node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
        elif is_operation and may_draw(node.target):
            name = f"draw_{node.name}"
            graph.add_submodule(name, _DrawingOperation(node.target))
            with graph.graph.inserting_before(node):
                node.replace_all_uses_with(
                    graph.graph.call_module(name, node.args, dict(node.kwargs))
                )
            graph.graph.erase_node(node)
    simplify(graph.graph, on_cpu=on_cpu)
    graph.recompile()
    return graph
