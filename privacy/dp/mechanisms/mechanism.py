"""The server's half: the noisy mean delta of a cohort, as an aggregator of any linear algorithm.

    params + (sum of clipped deltas + N(0, (z C)^2)) / cohort

Every client has the same weight, for any number of examples, and the divisor is the *configured*
cohort, so the set of clients that answer affects only the sum.

Source: McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language models"
(2018), algorithm 1, with the fixed-denominator estimator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ....errors import UpdateError
from ....flower.messages import FlatTensor, MemoryTensor
from ....randomness.entropy import Entropy
from ....strategies.algorithms.algorithm import Aggregate, Params, Update
from ....strategies.algorithms.exact_sums import Quotient
from ....strategies.algorithms.mean import MeanAggregator, MeanSum
from ..accounting.events import GaussianEvent
from ..correlated.noise_memory import NoisePast
from .clipping import WITHIN_KEY, Clipping, clip_update
from .mean_blocks import NoisyBlocks, normals
from .noise import SEED_BYTES, generator_from

__all__ = ["NoisyAggregate", "PrivateMean", "PrivateSum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyAggregate(Aggregate):
    """A private aggregate, and the noisy share of clients whose delta was within the clip norm.

    `within` is None unless clipping is adaptive. `seed` is the noise's seed if later rounds need
    it, else None.
    """

    within: float | None
    seed: bytes | None = None


@dataclass(slots=True, kw_only=True)
class PrivateSum:
    """The accumulator: the float64 sum of deltas so far, and the params that they start from."""

    params: Params
    deltas: MeanSum
    clients: int = 0
    within: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateMean:
    """Clips deltas that are not clipped yet, sums them, adds noise, and divides.

    Attributes:
        cohort: the configured cohort size, the divisor.
        noise_multiplier: standard deviation of the noise on the params / `clipping.clip_norm`.
        count_noise_stddev: standard deviation of the noise on the number of clients within the clip
            norm; None: the number is not released.
        past: the earlier rounds' noise, if this round's depends on it.

    Guarantees: the sum's L2 sensitivity to one client is `clipping.clip_norm` for updates of single
        clients, up to the rounding of float64, for every dtype of the params: deltas are clipped
        and summed in float64, and rounded once, after the noise. A reply that stands for several
        clients was clipped by its sender, within the rounding of float32 where that is a simulation's
        tensor of a cohort. The sum of k clients that a relay has made has a delta of at most
        k `clipping.clip_norm`, whatever the relay does.
    Edge cases: a round without updates releases noise; an update without a finite norm adds
        nothing. Tensors that are not floating-point keep their values.
    """

    cohort: float
    clipping: Clipping
    noise_multiplier: float
    entropy: Entropy
    count_noise_stddev: float | None = None
    past: NoisePast | None = None
    mean: MeanAggregator = field(default_factory=MeanAggregator)

    @property
    def group(self) -> int:
        return self.mean.group

    @property
    def event(self) -> GaussianEvent:
        """The event that `finish` releases; with correlated noise, that of one participation of a
        client, over all rounds.

        The noisy count is a second sum, of sensitivity 1/2; both together are one Gaussian release
        (Andrew et al. 2021, theorem 1): z^-2 = z_params^-2 + (2 count_noise_stddev)^-2.
        """
        cost = self.noise_multiplier**-2.0
        if self.count_noise_stddev is not None:
            cost += (2 * self.count_noise_stddev) ** -2.0
        return GaussianEvent(noise_multiplier=cost**-0.5)

    def zero(self, like: Params) -> PrivateSum:
        return PrivateSum(params=like, deltas=self.mean.zero(like))

    def fold(self, accumulator: PrivateSum, updates: Sequence[Update]) -> PrivateSum:
        for update in updates:
            tensors: Mapping[str, FlatTensor] = update.params
            if update.summed:
                tensors = {n: Quotient(tensor, update.clients) for n, tensor in tensors.items()}
            if update.summed or update.clients == 1:
                try:
                    tensors, _ = clip_update(accumulator.params, tensors, self.clipping, exact=True)
                except UpdateError:  # its norm is not finite: it adds nothing to the sum
                    continue
            counted = replace(
                update, params=tensors, weight=float(update.clients), summed=False, rests=()
            )
            accumulator.deltas = self.mean.fold(accumulator.deltas, [counted])
            accumulator.clients += update.clients
            within = min(1.0, max(0.0, update.metrics.get(WITHIN_KEY) or 0.0))
            accumulator.within += round(within * update.clients)  # a share of clients, or of one
        return accumulator

    def finish(self, accumulator: PrivateSum) -> NoisyAggregate:
        params, deltas, clients = accumulator.params, accumulator.deltas, accumulator.clients
        if not clients:  # a delta of zero, with noise
            deltas = self.mean.fold(deltas, [_unchanged(params)])
        seed, size = self.entropy(SEED_BYTES), deltas.layout.total
        with normals(seed, size) if self.past is None else self.past.rows(seed, size) as drawn:
            blocks = NoisyBlocks(
                params,
                share=clients / self.cohort,
                noise_stddev=self.noise_multiplier * self.clipping.clip_norm / self.cohort,
                noise=drawn,
                width=deltas.layout.width,
            )
            mean = blocks.settled(self.mean.finish(deltas, blocks).mean)
        within = None
        if (
            self.count_noise_stddev is not None
        ):  # counted as -1/2 or 1/2: half the sensitivity of 0 or 1
            noise = generator_from(self.entropy(SEED_BYTES)).normal(0.0, self.count_noise_stddev)
            noisy = accumulator.within - clients / 2 + noise
            within = float(noisy / self.cohort + 0.5)
        return NoisyAggregate(
            mean=mean,
            weight=self.cohort,
            clients=clients,
            within=within,
            seed=None if self.past is None else seed,
        )


def _unchanged(params: Params) -> Update:
    tensors = {name: MemoryTensor(values) for name, values in params.items()}
    return Update(client=0, params=tensors, weight=1.0)
