"""The server's half if clients add the noise: the mean of a cohort's noisy deltas.

    params + sum of noisy deltas / cohort

Every client has the same weight, and the divisor is the *configured* cohort, as in `mechanism`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ....strategies.algorithms.algorithm import Aggregate, Params, Update
from ....strategies.algorithms.mean import MeanAggregator
from .mean_blocks import ShareOfDelta
from .mechanism import PrivateSum

__all__ = ["SummedMean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedMean:
    """Sums the noisy deltas and divides by `cohort`, without clipping, which would remove noise.

    Edge cases: tensors that are not floating-point keep their values.
    """

    cohort: float
    mean: MeanAggregator = field(default_factory=MeanAggregator)

    @property
    def group(self) -> int:
        return self.mean.group

    def zero(self, like: Params) -> PrivateSum:
        return PrivateSum(params=like, deltas=self.mean.zero(like))

    def fold(self, accumulator: PrivateSum, updates: Sequence[Update]) -> PrivateSum:
        counted = [replace(update, weight=float(update.clients)) for update in updates]
        accumulator.deltas = self.mean.fold(accumulator.deltas, counted)
        accumulator.clients += sum(update.clients for update in updates)
        return accumulator

    def finish(self, accumulator: PrivateSum) -> Aggregate:
        params, clients = accumulator.params, accumulator.clients
        if clients:
            share = ShareOfDelta(params, clients / self.cohort)
            params = share.settled(self.mean.finish(accumulator.deltas, share).mean)
        return Aggregate(mean=params, weight=self.cohort, clients=clients)
