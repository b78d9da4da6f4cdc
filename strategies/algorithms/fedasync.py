"""FedAsync: each update moves the newest params a little towards the client's.

Source: Xie, Koyejo, Gupta, "Asynchronous federated optimization" (2019), algorithm 1: the newest
params are (1 - m) of what they were and m of the client's, where m is the mixing weight times the
staleness's. Its clients' proximal term is that of FedProx: `strategy.name = "fedprox"`.
"""

from __future__ import annotations

from .algorithm import Params
from .asynchrony import Asynchrony, Tensors
from .bounds import require_number
from .builders import builder
from .norms import clip_delta
from .staleness import Weighting, polynomial

__all__ = ["fedasync"]


@builder
def fedasync(
    *,
    mixing: float = 0.6,
    concurrency: float = 1.0,
    weighting: Weighting | None = None,
    max_staleness: int | None = None,
) -> Asynchrony:
    """Move the newest params by `mixing` times the weight of the way to a client's.

    `weighting` is polynomial with the exponent 1/2 if absent.

    Raises:
        ConfigError: an argument is out of its bounds.
    """
    share = require_number("mixing", mixing, above=0, at_most=1)

    def move(newest: Params, base: Params, tensors: Tensors, weight: float) -> Tensors:
        return clip_delta(newest, tensors, factor=share * weight)

    return Asynchrony(
        name="fedasync",
        carry=move,
        buffer_size=1,
        concurrency=concurrency,
        weighting=weighting or polynomial(),
        max_staleness=max_staleness,
    )
