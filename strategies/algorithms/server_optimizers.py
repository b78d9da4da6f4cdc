"""What the server makes of the mean update: SGD with momentum, Adagrad, Adam and Yogi.

The mean of the clients' params minus the old params is taken for a step against a gradient. Each
optimizer is a pure pair: the slots that it starts with, and an elementwise rule that is computed
in float64 whatever the params' dtype, block by block.

Sources: Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated
visual classification" (2019), equation 3 (momentum); Reddi et al., "Adaptive federated
optimization" (2021), algorithm 2 (Adagrad, Adam, Yogi). Conventions and defaults are those of
Flower 1.41, so that the numbers agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .algorithm import Params
from .bounds import require_number

__all__ = ["ServerOptimizer", "adagrad", "adam", "is_floating", "sgd", "yogi", "zeros_like"]

Reals = NDArray[np.float64]
Rule = Callable[[Reals, Reals, Sequence[Reals], int], tuple[Reals, Sequence[Reals]]]
"""(old params, mean, slots, round) -> (new params, new slots); the first round is 1."""

BLOCK = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptimizer:
    """A server optimizer: the names of its slots, and its rule.

    Integer and boolean tensors (counters, for instance) have no gradient: they become the mean,
    and their slots stay zero. Complex tensors are pairs of reals.
    Slots are float64 for tensors of 64-bit floats, else float32.
    """

    slots: tuple[str, ...]
    rule: Rule | None
    """None: the new params are the mean itself."""

    def init(self, params: Params) -> dict[str, Params]:
        """Return the slots before the first round: zeros."""
        return {slot: zeros_like(params) for slot in self.slots}

    def apply(
        self, params: Params, mean: Params, slots: Mapping[str, Params], round_number: int
    ) -> tuple[Params, Mapping[str, Params]]:
        """Return the new params and slots; nothing that is given is changed."""
        if self.rule is None:
            return mean, {}
        new_params: dict[str, NDArray[Any]] = {}
        new_slots: dict[str, dict[str, NDArray[Any]]] = {slot: {} for slot in self.slots}
        for name, old in params.items():
            held = [slots[slot][name] for slot in self.slots]
            if is_floating(old.dtype):
                new, held = _step(self.rule, old, mean[name], held, round_number)
            else:
                new = mean[name]
            new_params[name] = new
            for slot, values in zip(self.slots, held, strict=True):
                new_slots[slot][name] = values
        return new_params, new_slots


def sgd(*, learning_rate: float = 1.0, momentum: float = 0.0) -> ServerOptimizer:
    """Step towards the mean: FedAvg, and FedAvgM with momentum.

    Edge cases: with rate 1 and no momentum the new params are the mean, without arithmetic.
    """
    rate = require_number("server_learning_rate", learning_rate, above=0)
    decay = require_number("server_momentum", momentum, at_least=0, below=1)

    def plain(
        old: Reals, mean: Reals, slots: Sequence[Reals], _: int
    ) -> tuple[Reals, Sequence[Reals]]:
        return old - rate * (old - mean), ()

    def heavy_ball(
        old: Reals, mean: Reals, slots: Sequence[Reals], _: int
    ) -> tuple[Reals, Sequence[Reals]]:
        velocity = decay * slots[0] + (old - mean)
        return old - rate * velocity, (velocity,)

    if decay > 0:
        return ServerOptimizer(slots=("momentum",), rule=heavy_ball)
    return ServerOptimizer(slots=(), rule=None if rate == 1 else plain)


def adagrad(
    *, learning_rate: float = 0.1, beta_1: float = 0.0, tau: float = 1e-3
) -> ServerOptimizer:
    """FedAdagrad: the second moment is a sum that only grows."""

    def grow(second: Reals, squared: Reals) -> Reals:
        return second + squared

    return _adaptive(grow, learning_rate=learning_rate, beta_1=beta_1, tau=tau)


def adam(
    *,
    learning_rate: float = 0.1,
    beta_1: float = 0.9,
    beta_2: float = 0.99,
    tau: float = 1e-3,
) -> ServerOptimizer:
    """FedAdam: the second moment is a moving average.

    As in Flower, the step is corrected for the moments' start at zero (Kingma and Ba, 2015,
    just before section 2.1), with the exponent round + 1.
    """
    keep = require_number("beta_2", beta_2, at_least=0, below=1)

    def average(second: Reals, squared: Reals) -> Reals:
        return keep * second + (1 - keep) * squared

    def correction(round_number: int) -> float:
        power = round_number + 1.0
        return float(np.sqrt(1 - np.power(keep, power)) / (1 - np.power(beta_1, power)))

    return _adaptive(
        average, learning_rate=learning_rate, beta_1=beta_1, tau=tau, correction=correction
    )


def yogi(
    *,
    learning_rate: float = 0.01,
    beta_1: float = 0.9,
    beta_2: float = 0.99,
    tau: float = 1e-3,
) -> ServerOptimizer:
    """FedYogi: the second moment moves by steps whose size does not depend on itself."""
    keep = require_number("beta_2", beta_2, at_least=0, below=1)

    def approach(second: Reals, squared: Reals) -> Reals:
        return second - (1 - keep) * squared * np.sign(second - squared)

    return _adaptive(approach, learning_rate=learning_rate, beta_1=beta_1, tau=tau)


def _adaptive(
    second_moment: Callable[[Reals, Reals], Reals],
    *,
    learning_rate: float,
    beta_1: float,
    tau: float,
    correction: Callable[[int], float] = lambda _: 1.0,
) -> ServerOptimizer:
    """Return the optimizer whose steps are first moment / (root of second moment + tau)."""
    rate = require_number("server_learning_rate", learning_rate, above=0)
    keep = require_number("beta_1", beta_1, at_least=0, below=1)
    floor = require_number("tau", tau, above=0)

    def rule(
        old: Reals, mean: Reals, slots: Sequence[Reals], round_number: int
    ) -> tuple[Reals, Sequence[Reals]]:
        delta = mean - old
        first = keep * slots[0] + (1 - keep) * delta
        second = second_moment(slots[1], delta * delta)
        step = rate * correction(round_number) * first / (np.sqrt(second) + floor)
        return old + step, (first, second)

    return ServerOptimizer(slots=("first_moment", "second_moment"), rule=rule)


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype holds real or complex numbers, the small floats included."""
    return dtype.kind in "fc" or dtype.name.startswith(("bfloat", "float"))


def zeros_like(params: Params) -> dict[str, NDArray[Any]]:
    """Return a slot of zeros for these params."""
    return {name: np.zeros(old.shape, _slot_dtype(old)) for name, old in params.items()}


def _slot_dtype(values: NDArray[Any]) -> np.dtype[Any]:
    if values.dtype.kind == "c":
        return values.dtype
    return np.dtype(np.float64 if values.dtype == np.float64 else np.float32)


def _step(
    rule: Rule,
    old: NDArray[Any],
    mean: NDArray[Any],
    slots: Sequence[NDArray[Any]],
    round_number: int,
) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """Apply a rule to one tensor, block by block in float64."""
    new = np.empty(old.shape, old.dtype)
    new_slots = [np.empty(slot.shape, slot.dtype) for slot in slots]
    old_row, mean_row, new_row = _reals(old), _reals(mean), _reals(new)
    slot_rows, new_slot_rows = [_reals(slot) for slot in slots], [_reals(s) for s in new_slots]
    for start in range(0, len(old_row), BLOCK):
        part = slice(start, start + BLOCK)
        values, held = rule(
            old_row[part].astype(np.float64),
            mean_row[part].astype(np.float64),
            [row[part].astype(np.float64) for row in slot_rows],
            round_number,
        )
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the outcome
            new_row[part] = values
            for row, moved in zip(new_slot_rows, held, strict=True):
                row[part] = moved
    return new, new_slots


def _reals(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array as one row of real values, without a copy."""
    row = values.reshape(-1)
    return row.view(row.real.dtype) if row.dtype.kind == "c" else row
