"""Random numbers that depend on a seed alone: torch's, NumPy's and Python's global generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import memmove, string_at
from functools import cache
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..machine.accelerators import is_accelerator

__all__ = ["generator_states", "generators_now", "seeded", "seeded_device", "set_generator_states"]

MT19937_BYTES = 624 * 4 + 4
"""The state of an MT19937 in memory: its words and the place of the next one."""
_PYTHONS: Any = random.random.__self__  # type: ignore[attr-defined]  # the global generator


class seeded:
    """Seed every global generator for the block, and leave them as they were.

    The block neither depends on earlier draws nor affects later ones: it gives the same numbers in
    a simulation, between other clients, as in a process of its own. An object is for one block.
    """

    __slots__ = ("_before", "_device", "_inside", "_seed")

    def __init__(self, seed: int, device: str = "cpu", *, inside: bool = False) -> None:
        """`inside`: another block is around this one and leaves the CPU's generators as they were; here they
        are only seeded. What runs between two such blocks must not draw."""
        self._seed = seed
        self._device = seeded_device(seed, device) if device != "cpu" else None
        self._inside = inside

    def __enter__(self) -> None:
        if not self._inside:
            (_, restore_python), (_, restore_numpy) = _python_kept(), _numpy_kept()
            self._before = restore_python, restore_numpy, torch.default_generator.get_state()
        if self._device is not None:
            self._device.__enter__()
        seed = self._seed
        torch.default_generator.manual_seed(seed)  # torch.manual_seed looks at every device
        np.random.seed(seed & 0xFFFFFFFF)
        random.seed(seed)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._inside:
            restore_python, restore_numpy, torch_state = self._before
            restore_python()
            restore_numpy()
            torch.default_generator.set_state(torch_state)
        if self._device is not None:
            self._device.__exit__(kind, error, trace)


def generators_now() -> tuple[object, ...]:
    """Return where Python's and NumPy's global generators are: equal as long as nobody draws."""
    (python, _), (numpy, restore) = _python_kept(), _numpy_kept()
    restore()
    return python, numpy


Kept = tuple[object, Callable[[], None]]
"""The present state of a generator, and a function that restores it."""


def _python_kept() -> Kept:
    """Return the state of Python's global generator.

    `random.getstate` makes Python numbers of 624 words too; see `_numpy_kept`.
    """
    address = _python_words()
    if not address:
        state = random.getstate()
        return state, lambda: random.setstate(state)
    words, gauss = string_at(address, MT19937_BYTES), _PYTHONS.gauss_next

    def restore() -> None:
        memmove(address, words, MT19937_BYTES)
        _PYTHONS.gauss_next = gauss

    return (words, gauss), restore


@cache
def _python_words() -> int:
    """Return where Python's global generator has the place of its next word, and its words; 0 if they
    are not behind the head of the object, where CPython has them."""
    head = object.__basicsize__
    if type(_PYTHONS).__basicsize__ < head + MT19937_BYTES:
        return 0
    *words, place = random.getstate()[1]
    found = np.frombuffer(string_at(id(_PYTHONS) + head, MT19937_BYTES), np.uint32)
    return id(_PYTHONS) + head if found.tolist() == [place, *words] else 0


def _numpy_kept() -> Kept:
    """Return the state of NumPy's global generator, which is to be seeded or restored then.

    `np.random.get_state` makes Python numbers of 624 words, a tenth of a small client's training;
    so the words are kept as they lie in memory. Beside them a generator may hold the second normal
    number of a pair, which a draw tells: it then takes no words.
    """
    bits = np.random.get_bit_generator()  # type: ignore[attr-defined]  # NumPy's stubs lack it
    if type(bits) is not np.random.MT19937:
        state = np.random.get_state(legacy=False)
        return _comparable(state), lambda: np.random.set_state(state)
    address = bits.ctypes.state_address
    words = string_at(address, MT19937_BYTES)
    normal = np.random.standard_normal()
    if string_at(address, MT19937_BYTES) == words:
        state = np.random.get_state(legacy=False)
        held = {**state, "has_gauss": 1, "gauss": normal}
        return (words, normal), lambda: np.random.set_state(held)

    def restore() -> None:
        np.random.seed(0)  # no second number of a pair is left
        memmove(address, words, MT19937_BYTES)

    return (words, None), restore


def _comparable(state: Any) -> object:
    if isinstance(state, Mapping):
        return tuple((name, _comparable(value)) for name, value in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else state


@contextmanager
def seeded_device(seed: int, device: str | torch.device) -> Iterator[None]:
    """Seed an accelerator's global generator for the block, and leave it as it was; nothing is
    done for the CPU."""
    device = torch.device(device)
    if not is_accelerator(device):
        yield
        return
    module = torch.get_device_module(device)
    before = module.get_rng_state(device)
    module.set_rng_state(torch.Generator(device).manual_seed(seed).get_state(), device)
    try:
        yield
    finally:
        module.set_rng_state(before, device)


def generator_states(device: str = "cpu") -> dict[str, NDArray[Any]]:
    """Return the states of the global generators, as arrays."""
    _, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    assert kind == "MT19937", kind
    states = {
        "torch": torch.default_generator.get_state().numpy().copy(),
        "python": np.array(words, np.uint64),
        "python-gauss": np.array([] if gauss is None else [gauss], np.float64),
        "numpy": np.array(keys, np.uint64),
        "numpy-rest": np.array([place, has_gauss, cached], np.float64),
    }
    if is_accelerator(device):
        state = torch.get_device_module(device).get_rng_state(device)
        states["device"] = state.numpy().copy()
    return states


def set_generator_states(states: Mapping[str, NDArray[Any]], device: str = "cpu") -> None:
    """Restore the states that `generator_states` returned."""
    gauss = states["python-gauss"]
    words = tuple(int(word) for word in states["python"])
    random.setstate((3, words, float(gauss[0]) if gauss.size else None))
    place, has_gauss, cached = states["numpy-rest"]
    keys = states["numpy"].astype(np.uint32)
    np.random.set_state(("MT19937", keys, int(place), int(has_gauss), float(cached)))
    torch.default_generator.set_state(torch.from_numpy(np.array(states["torch"], np.uint8)))
    if "device" in states:
        state = torch.from_numpy(np.array(states["device"], np.uint8))
        torch.get_device_module(device).set_rng_state(state, device)
