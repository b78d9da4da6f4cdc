"""Random numbers of many clients at once: each client's are those that it would draw alone.

A client that trains alone seeds torch's generator and draws from it, operation after operation.
Under vmap one operation draws for all clients. It is intercepted below vmap, where every operation
of torch passes, whoever called it; the operation of one client, known from a trace of its step, is
then run client by client, each with the generator where that client has left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ....errors import DataError
from ....machine.process_limits import available_cores
from .mersenne_twister import ClientGenerators
from .step_trace import Draw, Generator, TensorKind, fills_argument, may_draw

__all__ = ["ClientRandomness"]

THREADED_VALUES = 1 << 16
"""So many values or more are drawn by several threads: 65,536 take one of them 0.1 to 0.4 ms."""


class ClientRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws for the clients `low` to `high` while it is entered; `begin` comes before each step.

    Guarantees: the numbers are the ones of the clients' own generators, in the order and the memory
        layout of a client alone; the global generators are left as they were.
    Raises:
        DataError: an operation draws that no client alone drew at this place.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        """`seeds` are those of the clients' trainings, in the order of the client axis."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._generator = Generator(device)
        self._own = ClientGenerators(seeds, device)
        self._clients = range(0)
        self._draws: tuple[Draw, ...] = ()
        self._place, self._turn = 0, 0

    def begin(self, low: int, high: int, draws: tuple[Draw, ...]) -> None:
        """Let the next step be that of these clients, whose steps alone draw `draws`."""
        self._clients, self._draws = range(low, high), draws
        self._place, self._turn = 0, 0

    def end(self) -> None:
        """Check that a step drew all that it should have.

        Raises:
            DataError: it did not.
        """
        if self._place != len(self._draws):
            raise DataError("a step of many clients draws fewer random numbers than one alone")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        return self.drawn(func, args, kwargs) if may_draw(func) else func(*args, **kwargs)

    def mark(self) -> tuple[Any, ...]:
        """Return where all generators are, for `back_to`."""
        states = [self._own[client].get_state() for client in range(len(self._own))]
        return states, self._place, self._turn

    def back_to(self, mark: tuple[Any, ...]) -> None:
        """Forget what was drawn since a mark."""
        states, self._place, self._turn = mark
        for client, state in enumerate(states):
            self._own[client].set_state(state)

    def drawn(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Return what an operation gives that may draw, for all clients.

        Raises:
            DataError: as entering.
        """
        before = self._generator.get()
        if kwargs.get("generator") is not None:
            raise DataError("the model draws from a generator of its own, one for all clients")
        if not self._draws_next(func, args):
            together = func(*args, **kwargs)
            if self._generator.is_at(before):  # it did not draw, as attention without dropout
                return together
            self._generator.set(before)
        if self._place >= len(self._draws):
            raise DataError(f"{func} draws random numbers, which it did not for one client alone")
        draw = self._draws[self._place]
        try:
            if draw.operation is func and not draw.tensors and draw.args == args:
                return self._one(func, args, kwargs)
            self._place += 1
            return self._all(draw, func, args)
        finally:
            self._generator.set(before)

    def _draws_next(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Return whether an operation is the one that filled a tensor for one client, in place or
        not: then it draws, and need not be tried."""
        draw = self._draws[self._place] if self._place < len(self._draws) else None
        if draw is None or not draw.fills or _name_of(draw.operation) != _name_of(func):
            return False
        return isinstance(args[0], torch.Tensor) and args[0].numel() > 0

    def _one(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Draw for the current client: vmap runs some operations client by client."""
        client = self._clients[self._turn]
        self._turn += 1
        if self._turn == len(self._clients):
            self._turn, self._place = 0, self._place + 1
        return self._drawn(client, func, args, kwargs)

    def _all(self, draw: Draw, func: Any, args: tuple[Any, ...]) -> Any:
        count, given = len(self._clients), [a for a in args if isinstance(a, torch.Tensor)]
        if draw.operation is not func and not draw.fills:
            raise DataError(f"{func} draws random numbers where one client alone has a {draw}")
        if draw.fills:
            return self._filled(draw, args[0], in_place=fills_argument(func))
        folded = bool(given) and given[0].ndim == len(draw.tensors[0].shape)
        stacks = [
            _by_client(tensor, kind, count)
            for tensor, kind in zip(given, draw.tensors, strict=bool(draw.tensors))
        ]
        made = []
        for row, client in enumerate(self._clients):
            left = iter(stack[row] for stack in stacks)
            own = [self._like(each, next(left, None)) for each in draw.args]
            made.append(self._drawn(client, draw.operation, own, draw.kwargs))
        if fills_argument(func):
            return args[0].copy_(torch.stack(made).view_as(args[0]))
        if isinstance(made[0], tuple):
            return tuple(_joined(parts, folded) for parts in zip(*made, strict=True))
        return _joined(made, folded)

    def _filled(self, draw: Draw, given: torch.Tensor, *, in_place: bool) -> torch.Tensor:
        """Fill a stack like the one given, or the given one, with what each client draws: in the order
        in which one client's tensor lies in memory."""
        (kind,), count = draw.tensors, len(self._clients)
        is_stack = given.shape == (count, *kind.shape)
        if in_place and is_stack and TensorKind.of(given[0]) == kind:
            stack = given
        else:
            stack = torch.empty_strided(
                (count, *kind.shape),
                (kind.span, *kind.stride),
                dtype=kind.dtype,
                device=self._device,
            )
        self._fill(draw, stack)
        if stack is given:
            return given
        if not is_stack:
            _by_client(
                given, kind, count
            )  # raises unless the clients' axis is folded into the rows'
            stack = stack.flatten(0, 1)
        return given.copy_(stack) if in_place else stack

    def _fill(self, draw: Draw, stack: torch.Tensor) -> None:
        """Fill each client's row; in as many threads as torch has, if the operation takes a generator."""
        rows, threads = range(len(self._clients)), 1
        if stack.numel() >= THREADED_VALUES and self._gives_generator(draw.operation):
            threads = torch.get_num_threads()
        if draw.operation is torch.ops.aten.bernoulli_.float and not draw.kwargs:
            pool = (_pool(), threads - 1) if threads > 1 else None
            if self._own.fill_bernoulli(self._clients, stack, *draw.args[1:], pool=pool):
                return

        def fill(rows: range) -> None:
            with torch.no_grad():
                for row in rows:
                    operands = (stack[row], *draw.args[1:])
                    self._drawn(self._clients[row], draw.operation, operands, draw.kwargs)

        others = [_pool().submit(fill, rows[part::threads]) for part in range(1, threads)]
        fill(rows[::threads])
        for each in others:
            each.result()

    def _like(self, argument: Any, values: torch.Tensor | None) -> Any:
        if not isinstance(argument, TensorKind):
            return argument
        made = argument.empty(self._device)
        return made if values is None else made.copy_(values)

    def _drawn(self, client: int, operation: Any, args: Sequence[Any], kwargs: Any) -> Any:
        own = self._own[client]
        if self._gives_generator(operation):
            return operation(*args, **{**kwargs, "generator": own})
        self._generator.set(own.get_state())
        made = operation(*args, **kwargs)
        own.set_state(self._generator.get())
        return made

    def _gives_generator(self, operation: Any) -> bool:
        """Return whether an operation draws from the client's generator itself, in any thread; others,
        and those of a device that may fall back to the CPU, draw from the global one, put in its state."""
        return self._device.type == "cpu" and _takes_generator(operation)


@cache
def _takes_generator(operation: Any) -> bool:
    return any(each.name == "generator" for each in operation._schema.arguments)


@cache
def _pool() -> ThreadPoolExecutor:
    """Return threads for operations that torch does not divide: a thread whose operation is divided has more
    threads of its own, and then none of the process's spins any more before it sleeps."""
    return ThreadPoolExecutor(max(1, available_cores() - 1), "random-numbers")


def _name_of(operation: Any) -> str:
    """Return what an operation in place and one that is not have in common."""
    return str(operation.__name__).partition(".")[0].rstrip("_")


def _by_client(tensor: torch.Tensor, kind: TensorKind, count: int) -> torch.Tensor:
    """Return a tensor of all clients as (clients, ...): vmap may have folded that axis into the
    one of the rows."""
    if tensor.shape == (count, *kind.shape):
        return tensor
    if kind.shape and tensor.shape == (count * kind.shape[0], *kind.shape[1:]):
        return tensor.view(count, *kind.shape)
    raise DataError(
        f"random numbers are drawn for values of shape {tuple(tensor.shape)}, and by one client "
        f"of {count} alone for {tuple(kind.shape)}"
    )


def _joined(made: Sequence[torch.Tensor], folded: bool) -> torch.Tensor:
    return torch.cat(list(made)) if folded else torch.stack(list(made))
