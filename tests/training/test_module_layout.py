"""A module's layout is torch's own answer at any time, whatever was done to the module in between."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from meadow.training.module_layout import begin_training, layout_of


def network() -> nn.Sequential:
    inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    return nn.Sequential(nn.Linear(3, 4), inner, nn.Dropout(), nn.Linear(4, 2, bias=False))


def put_in_front(model: Any) -> None:
    parts = [nn.Identity(), *model]
    model._modules.clear()
    for place, part in enumerate(parts):
        model.add_module(str(place), part)


def renamed(model: Any) -> None:
    """The same values in the same order, by another name."""
    model[0]._parameters["kernel"] = model[0]._parameters.pop("weight")
    model[0]._parameters["bias"] = model[0]._parameters.pop("bias")
    model[0]._parameters["kernel"] = model[0]._parameters.pop("kernel")


def moved(model: Any) -> None:
    """A param becomes the first buffer: the values and names in a row stay."""
    model[0]._buffers["bias"] = model[0]._parameters.pop("bias")


def swapped_persistence(model: Any) -> None:
    norm = model[1][1]
    norm._non_persistent_buffers_set.add("running_mean")


def other_class(model: Any) -> None:
    class Quiet(nn.Linear):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return kwargs.get("destination", {})

    model[0].__class__ = Quiet


def extra_state(model: Any) -> None:
    class Counting(nn.Linear):
        def get_extra_state(self) -> torch.Tensor:
            return torch.ones(1)

        def set_extra_state(self, state: Any) -> None: ...

    model[0] = Counting(3, 4)


def renaming_hook(model: Any) -> None:
    def hook(module: Any, held: dict[str, Any], prefix: str, metadata: Any) -> None:
        held["mine"] = held.pop("0.weight")

    model._register_state_dict_hook(hook)


def replaced_dict(model: Any) -> None:
    model[0]._parameters = {"weight": nn.Parameter(torch.ones(4, 3)), "bias": None}


def deleted(model: Any) -> None:
    del model[0].bias


CHANGES: dict[str, Callable[[Any], object]] = {
    "nothing": lambda model: None,
    "a new param": lambda model: setattr(model, "scale", nn.Parameter(torch.ones(1))),
    "a param replaced": lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(4, 3))),
    "a param removed": lambda model: setattr(model[0], "bias", None),
    "a param deleted": deleted,
    "a param renamed": renamed,
    "a param that is a buffer": moved,
    "its dictionary replaced": replaced_dict,
    "tied": lambda model: setattr(model[1][0], "bias", model[0].bias),
    "a new buffer": lambda model: model.register_buffer("seen", torch.zeros(2)),
    "a buffer of its own": lambda model: model.register_buffer(
        "a", torch.ones(1), persistent=False
    ),
    "a buffer replaced": lambda model: setattr(model[1][1], "running_mean", torch.ones(4)),
    "a buffer that is not kept": swapped_persistence,
    "a module appended": lambda model: model.append(nn.Linear(2, 2)),
    "a module replaced": lambda model: model.__setitem__(0, nn.Linear(3, 4, bias=False)),
    "a module deep inside": lambda model: model[1].append(nn.Linear(4, 4)),
    "modules in another order": put_in_front,
    "the same module twice": lambda model: model.append(model[0]),
    "another class": other_class,
    "a state of its own": extra_state,
    "a hook": renaming_hook,
    "weight norm": lambda model: weight_norm(model[0]),
    "spectral norm": lambda model: spectral_norm(model[0]),
    "parametrized": lambda model: parametrizations.orthogonal(model[0]),
    "in float64": lambda model: model.double(),
    "frozen": lambda model: model.requires_grad_(False),
    "a lazy module": lambda model: model.append(nn.LazyLinear(2)),
    "a lazy module, then run": lambda model: model.append(nn.LazyLinear(2))(torch.ones(2, 3)),
}


def agrees(model: nn.Module) -> None:
    """Compare a layout with what torch says now."""
    layout, state = layout_of(model), model.state_dict(keep_vars=True)
    assert list(layout.state) == list(state)
    assert all(
        layout.state[name] is each for name, each in state.items() if "extra_state" not in name
    )
    assert [*map(id, layout.params)] == [*map(id, model.parameters())]


@pytest.mark.parametrize("again", [False, True], ids=["once", "after another"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str, again: bool) -> None:
    """Whatever of a module is changed, and if another change came before."""
    model = network()
    agrees(model)
    if again:
        CHANGES["a new param"](model)
        agrees(model)
    CHANGES[change](model)
    agrees(model)
    agrees(model)


def test_nothing_is_looked_up_twice() -> None:
    """Of a module that stays as it is, also where it trains; another one has its own."""
    model = network()
    layout = layout_of(model)
    model(torch.ones(2, 3)).sum().backward()
    with torch.no_grad():
        for param in model.parameters():
            param -= 0.1
            param.grad = None
    assert layout_of(model) is layout
    other = copy.deepcopy(model)
    agrees(other)
    agrees(model)


def test_modes_are_set_as_torch_does() -> None:
    """By `train`, of all parts, also of one whose mode alone was changed."""
    model = network()
    for wrong in (model, model[1], model[1][1], model[2]):
        wrong.eval()
        begin_training(model)
        assert all(part.training for part in model.modules())


class FrozenNorm(nn.Module):
    """A common habit: batch norm stays in evaluation mode; and `train` returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.calls = 0

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.norm.eval()
        self.calls += 1


def test_a_train_method_of_its_own_is_called() -> None:
    """Every time, wherever in the model it is."""
    model = nn.Sequential(FrozenNorm(), nn.Linear(3, 2))
    for calls in (1, 2):
        begin_training(model)
        assert model.training and not model[0].norm.training and model[0].calls == calls
    model = FrozenNorm()
    begin_training(model)
    assert model.calls == 1 and not model.norm.training


class Hiding(nn.Module):
    """A part that is not listed among the modules."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(3, 3), nn.Linear(3, 2)

    def modules(self) -> Any:
        return iter([self.out])

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        return iter([("out", self.out)])


@pytest.mark.parametrize("wrap", [nn.Sequential, lambda model: model], ids=["inside", "alone"])
def test_the_mode_of_a_hidden_part_is_set(wrap: Any) -> None:
    """torch's `train` reaches it."""
    hiding = Hiding()
    model = wrap(hiding)
    for _ in range(2):
        hiding.hidden.eval()
        begin_training(model)
        assert hiding.hidden.training


@pytest.mark.parametrize("place", [0, 1], ids=["the root", "a part"])
def test_a_method_that_an_instance_gets_later_is_followed(place: int) -> None:
    """As one that keeps a norm in evaluation mode, or that says what is sent."""
    model = network()
    each: Any = (model, model[1])[place]
    agrees(model)
    begin_training(model)
    each.train = lambda mode=True: nn.Module.train(each, False)
    begin_training(model)
    assert not each.training
    each.state_dict = lambda **kwargs: kwargs.get("destination", {})
    each.seen = 1
    agrees(model)


class Equal(nn.Linear):
    """Modules that compare by something of their own; torch then takes several for one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 1


def test_modules_that_compare_by_value_are_told_apart() -> None:
    """Each has its own layout, and a change of one that torch does not list is seen."""
    one, other = Equal(2, 2), Equal(2, 2)
    agrees(one)
    agrees(other)
    both = nn.Sequential(one, other)
    agrees(both)
    other.bias = None
    agrees(both)


def test_a_layout_keeps_no_module_alive() -> None:
    """A model that nobody needs gives its memory back."""
    model = network()
    held = weakref.ref(model), weakref.ref(model[0].weight)
    layout_of(model).state  # noqa: B018 - it is looked up
    del model
    gc.collect()
    assert [ref() for ref in held] == [None, None]


def test_threads_have_their_own_modules() -> None:
    """Each gets the layout of the module that it asked for."""
    models = [nn.Sequential(*(nn.Linear(2, 2) for _ in range(count))) for count in (1, 2, 3, 4)]

    def ask(model: nn.Sequential) -> bool:
        return all(len(layout_of(model).params) == 2 * len(model) for _ in range(3000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(models)) as pool:
            assert all(pool.map(ask, models))
    finally:
        sys.setswitchinterval(before)
