"""Bernoulli numbers as torch draws them on a CPU, to the bit, in a fifth of the time: dropout's.

torch's generator is a Mersenne Twister, MT19937 (Matsumoto and Nishimura, "Mersenne Twister: a
623-dimensionally equidistributed uniform pseudo-random number generator", 1998). It makes 624 words
of 32 bits at a time, of which `bernoulli_` takes two for a number: it asks whether the last 53 bits
of both are fewer than a share of 2**53. torch computes word after word. Where Numba is installed
the same is compiled for many words at once, and the second word is only looked at where the first
one does not decide, once in two million numbers.

It counts if it gives what torch gives, the generator's state included, on numbers drawn once before.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["BernoulliKernel", "ClientGenerators"]

WORDS, AHEAD = 624, 397
"""n and m of the recurrence."""
UPPER, LOWER, TWIST = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(0x9908B0DF)
MASK_B, MASK_C = np.uint32(0x9D2C5680), np.uint32(0xEFC60000)
FIRST_BITS = np.uint32(0x1FFFFF)
"""The 21 bits of a number's first word that count."""

LEFT, NEXT, STATE = slice(8, 12), slice(16, 24), slice(24, 24 + 8 * WORDS)
STATE_BYTES = 5056
"""Bytes of a generator's state: how many words are left and one, which is the next, and all words as int64;
and how many bytes there are."""

VALUES_MIN = 4096
"""Fewer numbers of a generator take torch as long."""
COMPILE_AFTER = 1 << 26
"""So many numbers take torch half a second; compiling takes more than one."""

Pool = tuple[Executor, int]
"""Threads, and how many of them are to take part."""
Words = NDArray[np.uint32]
Kernel = Callable[[Words, NDArray[np.int64], NDArray[np.float32], np.uint64], None]


class BernoulliKernel:
    """The compiled numbers, once torch has drawn enough of them."""

    def __init__(self, kernel: Kernel | None = None, *, compile_after: int = COMPILE_AFTER) -> None:
        """With a `kernel`, that one draws."""
        self._left, self._kernel = compile_after, kernel
        self._is_tried = kernel is not None or find_spec("numba") is None

    def before(self, values: int) -> Kernel | None:
        """Return what draws so many numbers; None: torch does."""
        if not self._is_tried:
            self._left -= values
            if self._left < 0:
                self._kernel, self._is_tried = _proven(), True
        return self._kernel


_BERNOULLI = BernoulliKernel()


class ClientGenerators:
    """torch's generators of many clients, whose words are here while Bernoulli numbers are drawn."""

    def __init__(
        self, seeds: Sequence[int], device: torch.device, kernel: BernoulliKernel = _BERNOULLI
    ) -> None:
        """Begin with the clients' seeds, in the order of the client axis."""
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self._is_cpu = device.type == "cpu"
        self._kernel = kernel
        self._is_here = np.zeros(len(seeds), np.bool_)
        self._words: Words = np.empty((0, WORDS), np.uint32)
        self._used = np.zeros(len(seeds), np.int64)

    def __len__(self) -> int:
        return len(self._generators)

    def __getitem__(self, client: int) -> torch.Generator:
        """Return a client's generator, where its last draw has left it."""
        generator = self._generators[client]
        if self._is_here[client]:
            state = generator.get_state()
            raw, used = state.numpy(), int(self._used[client])
            raw[STATE].view(np.uint64)[:] = self._words[client]
            raw[LEFT].view(np.int32)[0], raw[NEXT].view(np.uint64)[0] = WORDS + 1 - used, used
            generator.set_state(state)
            self._is_here[client] = False
        return generator

    def fill_bernoulli(
        self, clients: range, stack: torch.Tensor, p: float = 0.5, *, pool: Pool | None = None
    ) -> bool:
        """Fill each client's row as `row.bernoulli_(p, generator=generator)` does, in this thread and those
        of a `pool`; False, and nothing done, where torch has to.

        Shapes: stack (clients, ...).
        """
        if not self._is_cpu or stack.dtype != torch.float32 or not stack.is_contiguous():
            return False
        if stack.numel() < VALUES_MIN * len(clients) or not 0.0 <= p <= 1.0:
            return False  # torch says what is wrong with p
        kernel = self._kernel.before(stack.numel())
        if kernel is None:
            return False
        self._take(clients)
        low, high = clients.start, clients.stop
        words, used = self._words[low:high], self._used[low:high]
        out = stack.view(len(clients), -1).numpy()
        bound = np.uint64(math.ceil(math.ldexp(p, 53)))
        threads, others = 1 if pool is None else 1 + pool[1], []
        ends = [len(clients) * part // threads for part in range(threads + 1)]
        parts = [(words[a:b], used[a:b], out[a:b], bound) for a, b in pairwise(ends)]
        if pool is not None:
            others = [pool[0].submit(kernel, *part) for part in parts[1:]]
        kernel(*parts[0])
        for each in others:
            each.result()
        return True

    def _take(self, clients: range) -> None:
        """Take the clients' words out of their generators."""
        if not self._words.size:
            self._words = np.empty((len(self), WORDS), np.uint32)
        away = np.flatnonzero(~self._is_here[clients.start : clients.stop]) + clients.start
        for client in away.tolist():
            raw = self._generators[client].get_state().numpy()
            left = int(raw[LEFT].view(np.int32)[0])  # 1 also where none was ever drawn
            if len(raw) != STATE_BYTES or not 1 <= left <= WORDS:
                raise RuntimeError("torch keeps its generator's state in another form")
            self._words[client] = raw[STATE].view(np.uint64)
            self._used[client] = WORDS if left == 1 else WORDS + 1 - left
            self._is_here[client] = True


def _proven() -> Kernel | None:
    """Return the compiled numbers, None if they are not torch's."""
    try:
        kernel = _compiled()
        if _is_torchs(kernel):
            return kernel
        why = "they are not torch's"
    except Exception as error:  # whatever Numba or this torch does otherwise: torch's numbers count
        why = f"{type(error).__name__}: {error}"
    logging.getLogger(__name__).warning("dropout's numbers are not compiled, torch draws: %s", why)
    return None


def _is_torchs(kernel: Kernel) -> bool:
    """Return whether numbers, and where generators are afterwards, are those of torch."""
    seeds, cpu = [5, 6], torch.device("cpu")
    ours = ClientGenerators(seeds, cpu, BernoulliKernel(kernel))
    theirs = ClientGenerators(seeds, cpu)
    for size, p in ((VALUES_MIN, 0.5), (VALUES_MIN + 1, 0.9), (9 * WORDS, 1 / 3)):
        made, wanted = torch.empty(2, size), torch.empty(2, size)
        ours.fill_bernoulli(range(2), made, p)
        for client, row in enumerate(wanted):
            row.bernoulli_(p, generator=theirs[client])
        if not torch.equal(made, wanted):
            return False
        for client in range(2):
            if not torch.equal(ours[client].get_state(), theirs[client].get_state()):
                return False
            for each in (ours, theirs):  # one word: the next number begins with an odd one
                torch.empty(1).uniform_(generator=each[client])
    return True


def _compiled() -> Kernel:
    """Return what fills each row with ones where a number of 53 bits is below a bound, from the words
    of the row's generator, of which so many are used; both are left as they are afterwards."""
    from numba import njit

    u32, u64, one, zero = np.uint32, np.uint64, np.float32(1.0), np.float32(0.0)

    def next_word(word: Any, after: Any, ahead: Any) -> Any:
        mixed = u32(u32(word & UPPER) | u32(after & LOWER))
        odd = u32(u32(0) - u32(mixed & u32(1)))
        return u32(u32(ahead ^ u32(mixed >> u32(1))) ^ u32(odd & TWIST))

    next_word = njit(inline="always")(next_word)

    def tempered(word: Any) -> Any:
        word = u32(word ^ u32(word >> u32(11)))
        word = u32(word ^ u32(u32(word << u32(7)) & MASK_B))
        word = u32(word ^ u32(u32(word << u32(15)) & MASK_C))
        return u32(word ^ u32(word >> u32(18)))

    tempered = njit(inline="always")(tempered)

    def twist(words: Any) -> None:
        behind = WORDS - AHEAD
        for i in range(behind):
            words[i] = next_word(words[i], words[i + 1], words[i + AHEAD])
        for i in range(AHEAD - 1):
            words[i + behind] = next_word(words[i + behind], words[i + behind + 1], words[i])
        words[WORDS - 1] = next_word(words[WORDS - 1], words[0], words[AHEAD - 1])

    twist = njit(nogil=True)(twist)

    def fill_row(words: Any, used: Any, out: Any, bound: Any) -> Any:
        first_bound, second_bound = u32(bound >> u64(32)), u32(bound & u64(0xFFFFFFFF))
        firsts = np.empty(WORDS // 2, np.uint32)
        done = 0
        while done < out.shape[0]:
            if used == WORDS:
                twist(words)
                used = 0
            if used == WORDS - 1:  # the first word is the last one of its kind
                first = u32(tempered(words[used]) & FIRST_BITS)
                twist(words)
                used = 1
                below = tempered(words[0]) < second_bound
                below = first < first_bound or (first == first_bound and below)
                out[done] = one if below else zero
                done += 1
                continue
            count = min((WORDS - used) // 2, out.shape[0] - done)
            for i in range(count):
                firsts[i] = words[used + 2 * i]
            undecided = u32(0)
            for i in range(count):
                first = u32(tempered(firsts[i]) & FIRST_BITS)
                out[done + i] = one if first < first_bound else zero
                undecided = u32(undecided | u32(first == first_bound))
            if undecided:
                for i in range(count):
                    if u32(tempered(firsts[i]) & FIRST_BITS) == first_bound:
                        below = tempered(words[used + 2 * i + 1]) < second_bound
                        out[done + i] = one if below else zero
            used += 2 * count
            done += count
        return used

    fill_row = njit(nogil=True)(fill_row)

    def fill(words: Any, used: Any, out: Any, bound: Any) -> None:
        for row in range(out.shape[0]):
            used[row] = fill_row(words[row], used[row], out[row], bound)

    compiled: Kernel = njit(nogil=True)(fill)
    return compiled
