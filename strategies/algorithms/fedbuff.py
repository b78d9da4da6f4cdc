"""FedBuff: nobody waits for anybody; the mean of the next few changes is a step of the newest params.

Any algorithm's server optimizer makes that step. With as many clients at work as the buffer takes,
all equally fast, its rounds are the synchronous ones.

Source: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated learning with buffered
asynchronous aggregation" (2022), algorithm 1; a client's delta counts by its number of examples.
"""

from __future__ import annotations

from ...flower.messages import FlatTensor
from .algorithm import Params
from .asynchrony import Asynchrony, Tensors
from .builders import builder
from .norms import moved_delta
from .staleness import Weighting, polynomial

__all__ = ["fedbuff"]


@builder
def fedbuff(
    *,
    buffer_size: int = 10,
    concurrency: float = 1.0,
    weighting: Weighting | None = None,
    max_staleness: int | None = None,
) -> Asynchrony:
    """Add the mean of `buffer_size` changes, each times its weight, to the newest params.

    `weighting` is polynomial with the exponent 1/2 if absent.

    Raises:
        ConfigError: an argument is out of its bounds.
    """
    return Asynchrony(
        name="fedbuff",
        carry=_add_change,
        buffer_size=buffer_size,
        concurrency=concurrency,
        weighting=weighting or polynomial(),
        max_staleness=max_staleness,
    )


def _add_change(newest: Params, base: Params, tensors: Tensors, weight: float) -> Tensors:
    """Return newest + weight * (tensors - base)."""
    if newest is base and weight == 1:
        return tensors
    moved: dict[str, FlatTensor] = moved_delta(base, tensors, onto=newest, factor=weight)
    return moved
