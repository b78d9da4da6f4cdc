"""Traces the training step of one client alone: what must be known before many take it at once.

The step runs once on copies of the params and buffers, with every operation of torch observed. It
shows which operations draw random numbers and in which shapes, which params the loss does not
depend on, and whether the step does what cannot be mapped over clients: it reaches a param by
another way than through its module, changes attributes that are neither params nor buffers, or
draws from Python's or NumPy's generators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

from ....errors import DataError
from ....randomness.seeded import generators_now, seeded
from ....training.functional import replaced
from ....training.module_state import PythonState

__all__ = [
    "Draw",
    "Generator",
    "OwnGenerators",
    "StepTrace",
    "TensorKind",
    "fills_argument",
    "may_draw",
    "trace_step",
    "undisturbed",
]

Tensors = Mapping[str, torch.Tensor]
LossOf = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class TensorKind:
    """How a tensor lies in memory: a draw fills memory in its order."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorKind:
        """Return a tensor's."""
        return cls(tensor.shape, tensor.stride(), tensor.dtype)

    @property
    def span(self) -> int:
        """How many elements of memory it reaches over."""
        reach = (stride * (size - 1) for size, stride in zip(self.shape, self.stride, strict=True))
        return 1 + sum(reach) if self.shape.numel() else 0

    def empty(self, device: torch.device) -> torch.Tensor:
        """Return a tensor that lies like this."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


@dataclass(frozen=True, slots=True)
class Draw:
    """An operation that draws random numbers; in its arguments a `TensorKind` is a tensor."""

    operation: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def fills(self) -> bool:
        """Whether it fills its first argument, whatever was there, and takes no other tensor."""
        first = bool(self.args) and isinstance(self.args[0], TensorKind)
        return first and fills_argument(self.operation) and len(self.tensors) == 1

    @property
    def tensors(self) -> list[TensorKind]:
        """What it takes, tensors only."""
        return [each for each in self.args if isinstance(each, TensorKind)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """What a step of one client did.

    Attributes:
        draws: the operations that drew random numbers, in their order.
        unused: the params that the loss does not depend on: they have no gradient.
        outputs: what the forward pass gave.
        bytes: what the forward pass and the loss made, in all.
        flops: the floating point operations of the step's matrix products and convolutions.
    """

    draws: tuple[Draw, ...]
    unused: frozenset[str]
    outputs: torch.Tensor
    bytes: int
    flops: int


def may_draw(operation: Any) -> bool:
    """Return whether an operation of torch can draw from a generator; without dropout, attention
    does not."""
    return torch.Tag.nondeterministic_seeded in operation.tags


def fills_argument(operation: Any) -> bool:
    """Return whether an operation of torch works in place."""
    return str(operation.__name__).partition(".")[0].endswith("_")


def trace_step(
    module: torch.nn.Module,
    trained: Tensors,
    others: Tensors,
    inputs: torch.Tensor,
    loss_of: LossOf,
    loss: object = None,
) -> StepTrace:
    """Trace a step from these trained params; `others` are the frozen params and the buffers.

    The module, the generators, the tensors given and what the `loss` holds are left as they were.

    Raises:
        DataError: the step cannot be mapped over clients; the text names the operation.
        whatever the module or the loss raise.
    """
    _refuse_hooks(module)
    params = {name: each.detach().clone().requires_grad_() for name, each in trained.items()}
    rest = {name: each.detach().clone() for name, each in others.items()}
    watch = _Watch([*trained.values(), *others.values()])
    # The backward pass may come to the module again, which then computes some of it anew.
    own = replaced(module, {**params, **rest})
    device = inputs.device
    with seeded(0, str(device)), undisturbed(module, loss, device, draws=True), own:
        with watch:
            outputs = module(inputs.clone())
            total = loss_of(outputs).sum()
        made = watch.bytes
        found = _gradients(total, params, watch)
    if watch.generators:
        raise DataError(
            "the model or the loss draws from a generator of its own, one for all clients"
        )
    if watch.original:
        raise DataError(
            "the model uses a param or a buffer by another way than as its module's attribute "
            "(through a list, a closure or a view of it)"
        )
    unused = frozenset(name for name, each in zip(params, found, strict=True) if each is None)
    return StepTrace(
        draws=tuple(watch.draws),
        unused=unused,
        outputs=outputs.detach(),
        bytes=made,
        flops=watch.flops,
    )


@contextmanager
def undisturbed(
    module: torch.nn.Module, loss: object, device: torch.device, *, draws: bool = False
) -> Iterator[None]:
    """Check that the block leaves everything that clients would share as it was: the module's and the
    loss's attributes, which are put back, and the global generators (those of torch, on the module's
    `device` too, unless it `draws`).

    Raises:
        DataError: it does not; the text names what it changes.
    """
    state, of_loss = PythonState(module), PythonState(loss, buffers=True)
    devices = () if draws else {torch.device("cpu"), device}
    generators = [Generator(each) for each in devices]
    before, places = generators_now(), [each.get() for each in generators]
    try:
        yield
        if name := state.changed():
            raise DataError(
                f"the forward pass changes {name!r} of the model, which is neither a param nor a "
                "buffer; register it with register_buffer to train clients at once"
            )
        if name := of_loss.changed():
            raise DataError(f"the loss changes its {name!r}, which clients would share")
    except BaseException:  # without one, nothing has changed
        state.restore()
        of_loss.restore()
        raise
    if before != generators_now():
        raise DataError(
            "the model, the loss or a metric draws from Python's or NumPy's random numbers, which "
            "clients that train at once would share; draw from torch's"
        )
    if not all(each.is_at(at) for each, at in zip(generators, places, strict=True)):
        raise DataError("random numbers are drawn where no client alone drew any")


def _gradients(
    total: torch.Tensor, params: Mapping[str, torch.Tensor], watch: _Watch
) -> tuple[torch.Tensor | None, ...]:
    if not total.requires_grad:
        return (None,) * len(params)
    with watch:
        return torch.autograd.grad(total, [*params.values()], allow_unused=True)


def _refuse_hooks(module: torch.nn.Module) -> None:
    for name, param in module.named_parameters():
        if param._backward_hooks or getattr(param, "_post_accumulate_grad_hooks", None):
            raise DataError(f"param {name!r} has a hook on its gradient, for one client's param")


class OwnGenerators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Leaves the generators of random numbers that operations are given as they were.

    Attributes:
        generators: them, with the state in which each was found.
        drew: whether an operation ran that can draw, from these or others.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generators: dict[torch.Generator, torch.Tensor] = {}
        self.drew = False

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        for each, state in self.generators.items():
            each.set_state(state)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if (own := kwargs.get("generator")) is not None:
            self.generators.setdefault(own, own.get_state())
        self.drew = self.drew or may_draw(func)
        return func(*args, **kwargs)


class _Watch(OwnGenerators):  # type: ignore[no-untyped-call]
    """Notes what draws, and whether one of the original tensors is read."""

    def __init__(self, originals: list[torch.Tensor]) -> None:
        super().__init__()
        self.draws: list[Draw] = []
        self.original = False
        self.bytes = self.flops = 0
        self._generator = Generator(originals[0].device if originals else torch.device("cpu"))
        self._originals = {_place(each) for each in originals if each.numel()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if may_draw(func):
            before = self._generator.get()
            taken, named = tree_map_only(torch.Tensor, TensorKind.of, (args, kwargs))
            result = super().__torch_dispatch__(func, types, args, kwargs)
            if not self._generator.is_at(before):
                self.draws.append(Draw(func, taken, named))
        else:
            result = func(*args, **kwargs)
        tree_map_only(torch.Tensor, self._look, (args, kwargs))
        if not any(each.alias_info for each in func._schema.returns):  # else nothing new is made
            tree_map_only(torch.Tensor, self._count, result)
        if (count := flop_registry.get(func.overloadpacket)) is not None:
            self.flops += count(*args, **kwargs, out_val=result)
        return result

    def _look(self, tensor: torch.Tensor) -> None:
        if tensor.layout == torch.strided and tensor.numel() and _place(tensor) in self._originals:
            self.original = True

    def _count(self, tensor: torch.Tensor) -> None:
        self.bytes += tensor.numel() * tensor.element_size()


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Generator:
    """The state of a device's global generator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def get(self) -> torch.Tensor:
        """Return where it is."""
        if self._device.type == "cpu":
            return torch.default_generator.get_state()
        state: torch.Tensor = torch.get_device_module(self._device).get_rng_state(self._device)
        return state

    def set(self, state: torch.Tensor) -> None:
        """Put it where `get` found it."""
        if self._device.type == "cpu":
            torch.default_generator.set_state(state)
        else:
            torch.get_device_module(self._device).set_rng_state(state, self._device)

    def is_at(self, state: torch.Tensor) -> bool:
        """Return whether it is where `get` found it."""
        return torch.equal(self.get(), state)
