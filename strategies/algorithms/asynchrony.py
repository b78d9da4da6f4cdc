"""Settings of asynchronous rounds: concurrency, buffer size, staleness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...flower.messages import FlatTensor
from .algorithm import Algorithm, Params, params_of
from .bounds import require_number, require_whole
from .builders import Recipe
from .staleness import Weighting, polynomial

__all__ = ["Asynchrony", "Carry", "needs_more_than_params"]

Tensors = Mapping[str, FlatTensor]
Carry = Callable[[Params, Params, Tensors, float], Tensors]
"""(newest params, params that the client started from, trained params, weight) -> the trained params
as if the client had started from the newest ones; the algorithm uses them as the client's params."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asynchrony:
    """Clients train all the time, each with the params that were the newest when it was asked.

    `fedbuff` and `fedasync` make one.

    Attributes:
        name: what it is called.
        carry: see `Carry`.
        buffer_size: how many valid updates end a round, >= 1.
        concurrency: how many clients train at once: a fraction in (0, 1] of those that are there
            (a float), or a whole number of them (an int).
        weighting: what an update's weight is for its staleness.
        max_staleness: the training of clients on older params is cancelled, in rounds; None: never.
    """

    name: str
    carry: Carry
    buffer_size: int
    concurrency: float | int = 1.0
    weighting: Weighting = field(default_factory=polynomial)
    max_staleness: int | None = None
    recipe: Recipe | None = field(default=None, compare=False, repr=False)
    """How a builder made it; see `recipe_of`."""

    def __post_init__(self) -> None:
        require_whole("buffer_size", self.buffer_size, at_least=1)
        if isinstance(self.concurrency, int):
            require_whole("concurrency", self.concurrency, at_least=1)
        else:
            require_number("concurrency", self.concurrency, above=0, at_most=1)
        if self.max_staleness is not None:
            require_whole("max_staleness", self.max_staleness, at_least=0)


def needs_more_than_params(algorithm: Algorithm) -> bool:
    """Return whether an algorithm sends or keeps more than params, or sees who is in a round.

    Nothing of that can be carried over from the params that a client began with to the newest.
    """
    plain = algorithm.sent is params_of and not algorithm.auxiliary and algorithm.linear
    return not plain or bool(algorithm.evaluate_config) or algorithm.of_round is not None
