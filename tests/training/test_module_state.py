"""What a module holds in Python is restored: values, objects that are shared, and what is in them."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from meadow.training.module_state import PythonState


def pcg() -> np.random.Generator:
    return np.random.default_rng(3)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "list": (lambda: [1, 2.0], lambda v: v.append(3)),
    "nested list": (lambda: [[1], [2]], lambda v: v[0].append(3)),
    "tuple of lists": (lambda: ([1], [2]), lambda v: v[1].clear()),
    "deque": (lambda: deque([1, 2], maxlen=2), lambda v: v.append(3)),
    "dict": (lambda: {"a": 1}, lambda v: v.update(b=2)),
    "order of a dict": (lambda: OrderedDict(a=1, b=2), lambda v: v.move_to_end("a")),
    "defaultdict": (lambda: defaultdict(int, a=1), lambda v: v["b"]),
    "counter": (lambda: Counter("aab"), lambda v: v.update("b")),
    "set": (lambda: {1, 2}, lambda v: v.discard(1)),
    "tensor": (lambda: torch.ones(3), lambda v: v.mul_(2)),
    "list of tensors": (lambda: [torch.ones(3)], lambda v: v[0].zero_()),
    "array": (lambda: np.ones(3), lambda v: v.fill(2)),
    "generator of torch": (lambda: torch.Generator().manual_seed(3), lambda v: v.manual_seed(4)),
    "generator of numpy": (pcg, lambda v: v.random()),
    "generator of python": (lambda: random.Random(3), lambda v: v.random()),
    "namespace": (lambda: SimpleNamespace(steps=[1]), lambda v: v.steps.append(2)),
}


def seen(value: Any) -> Any:
    """Return what can be compared of a value."""
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, SimpleNamespace):
        return vars(value)
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return list(value.items())
    return [seen(each) for each in value] if isinstance(value, list | tuple) else value


class Two(nn.Module):
    """Two modules with one value."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)
        self.a.held = self.b.held = value


@pytest.mark.parametrize("kind", CHANGES)
def test_what_changed_in_place_is_restored_in_place(kind: str) -> None:
    """Every holder, a closure too, goes on with the same object, which holds what it held."""
    make, change = CHANGES[kind]
    value = make()
    module = Two(value)
    state = PythonState(module)
    assert not state.changed()
    for _ in range(2):
        change(value)
        assert state.changed().startswith(("a.held", "b.held"))
        state.restore()
        assert module.a.held is module.b.held is value
        assert seen(value) == seen(make())
        assert not state.changed()


@pytest.mark.parametrize("kind", CHANGES)
def test_what_was_replaced_is_there_again(kind: str) -> None:
    make, change = CHANGES[kind]
    module = Two(make())
    state = PythonState(module)
    module.a.held = change(module.a.held)
    module.b.held = "something else"
    module.b.more = 3
    state.restore()
    assert module.a.held is module.b.held
    assert seen(module.a.held) == seen(make())
    assert not hasattr(module.b, "more")


@pytest.mark.parametrize("found", [torch.ones(3), np.ones(3), torch.tensor(2.0), [1], None])
def test_something_else_in_the_place_of_a_number_is_a_change(found: Any) -> None:
    module = Two({"usual": 1.0, "last": [1.0]})
    module.a.past = [0.0, 1.0]
    state = PythonState(module)
    module.a.held["usual"] = found
    assert state.changed()
    state.restore()
    assert module.b.held == {"usual": 1.0, "last": [1.0]} and module.a.held is module.b.held
    module.a.past[1] = found
    assert state.changed()
    state.restore()
    assert module.a.past == [0.0, 1.0]


def test_memory_that_two_tensors_share_is_restored() -> None:
    table = torch.arange(4.0)
    module = Two(table[1:3])
    state = PythonState(module)
    table.zero_()
    state.restore()
    assert table.tolist() == [0, 1, 2, 0]


def test_a_tensor_that_was_resized_or_cannot_be_written_is_replaced() -> None:
    module = Two(torch.ones(3))
    module.a.wide = torch.zeros(1).expand(3)
    state = PythonState(module)
    module.a.held.resize_(5)
    module.a.wide = torch.ones(3)
    state.restore()
    assert module.a.held.tolist() == [1, 1, 1]
    assert module.a.wide.tolist() == [0, 0, 0]


def test_no_number_equals_no_number() -> None:
    module = Two(torch.tensor([1.0, torch.nan]))
    module.a.nan = float("nan")
    state = PythonState(module)
    module.a.held, module.a.nan = module.a.held.clone(), float("nan")
    assert not state.changed()


@dataclass(frozen=True)
class Settings:
    widths: list[int] = field(default_factory=lambda: [1])

    def __hash__(self) -> int:
        return 0


class Schedule:
    def __init__(self) -> None:
        self.steps, self.settings = 0, Settings()
        self.owner: Any = None


def test_objects_of_ones_own_are_looked_into() -> None:
    """Also one in another, one that cannot be written by name, and one that leads back."""
    module = Two(Schedule())
    schedule = module.a.held
    schedule.owner = module
    state = PythonState(module)
    schedule.steps += 1
    assert state.changed() == "a.held.steps"
    schedule.settings.widths.append(2)
    vars(schedule.settings)["cached"] = 4
    state.restore()
    assert (schedule.steps, schedule.settings.widths) == (0, [1])
    assert not hasattr(schedule.settings, "cached")


def test_a_module_made_later_is_left_alone() -> None:
    module = nn.Sequential(nn.Linear(1, 1))
    state = PythonState(module)
    module.append(nn.Conv1d(1, 1, 1))
    assert not state.changed()
    state.restore()
    assert module[1].stride == (1,)


class Usual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("usual", torch.zeros(2))

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return x

    forward = of


GLOBAL = Usual()


def test_a_loss_counts_with_its_buffers() -> None:
    """Also as a method, and as a module that a function calls."""
    loss = Usual()
    later: nn.Module

    def unfinished(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = later(x)
        return made

    ways: list[tuple[Any, Usual]] = [
        (loss, loss),
        (loss.of, loss),
        (lambda x: loss(x), loss),
        (partial(lambda x, scale: loss(x) * scale, scale=2), loss),
        (partial(loss.of), loss),
        (lambda x: GLOBAL(x), GLOBAL),
    ]
    for each, holder in ways:
        state = PythonState(each, buffers=True)
        holder.usual += 1
        assert state.changed().endswith("_buffers")
        state.restore()
        assert holder.usual.tolist() == [0, 0]
        assert not state.changed()
    assert not PythonState(unfinished, buffers=True).changed()
    later = loss
    assert unfinished(torch.ones(1)).item() == 1.0
    assert not PythonState(nn.functional.mse_loss, buffers=True).changed()
    assert not PythonState(torch.relu, buffers=True).changed()
