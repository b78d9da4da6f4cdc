"""How a simulation divides one data set among its clients.

Sources: label skew by a Dirichlet prior, Hsu, Qi, Brown 2019 (arXiv 1909.06335); shards of
sorted labels, McMahan et al. 2017 (arXiv 1602.05629, section 3); natural groups, Caldas et al.
2018 (arXiv 1812.01097); noise-based feature skew, Li et al. 2021 (arXiv 2102.02079). Only NumPy is
needed here, so that a site can ask for its share without loading the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from . import kinds
from .shares import Division, Shares

__all__ = ["Partition", "PartitionKind"]

PartitionKind = Literal["iid", "dirichlet", "shards", "size", "natural", "feature"]
_LABELLED = frozenset({"dirichlet", "shards"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A rule for dividing samples.

    Attributes:
        kind: "iid": equal shares at random. "dirichlet": every class is divided in
            proportions drawn from Dirichlet(alpha). "shards": every client has samples of about
            `classes_per_client` classes. "size": random samples, the shares' sizes drawn from
            Dirichlet(alpha). "natural": samples come in groups, as those of a writer, and whole
            groups are dealt, about as many to each client. "feature": as "iid", and
            `Site.shifted` adds noise to a client's inputs.
        alpha: the skew of "dirichlet" and "size"; towards 0 is more uneven.
        classes_per_client: for "shards".
        min_samples: the least that any client has.
        noise_variance: for "feature": client i of n adds Gaussian noise of variance
            noise_variance * i / n.
    """

    kind: PartitionKind = "iid"
    alpha: float = 0.5
    classes_per_client: int = 2
    min_samples: int = 1
    noise_variance: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in get_args(PartitionKind):
            known = ", ".join(f'"{kind}"' for kind in get_args(PartitionKind))
            raise ConfigError(f"partition must be one of {known}, got {self.kind!r}")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ConfigError(f"alpha must be a finite number > 0, got {self.alpha}")
        if self.classes_per_client < 1:
            raise ConfigError(f"classes_per_client must be >= 1, got {self.classes_per_client}")
        if self.min_samples < 1:
            raise ConfigError(f"min_samples must be >= 1, got {self.min_samples}")
        if not (math.isfinite(self.noise_variance) and self.noise_variance >= 0):
            raise ConfigError(
                f"noise_variance must be a finite number >= 0, got {self.noise_variance}"
            )

    @property
    def looks_at_targets(self) -> bool:
        """Whether the division depends on the targets' values, not only on their number."""
        return self.kind in _LABELLED

    @property
    def looks_at_groups(self) -> bool:
        """Whether the division depends on which samples belong together."""
        return self.kind == "natural"

    def split(
        self,
        targets: NDArray[np.generic],
        count: int,
        seed: int,
        *,
        groups: NDArray[np.generic] | None = None,
    ) -> Shares:
        """Return the indices of each of `count` shares, sorted.

        Shapes: `targets` (samples,) are class labels; only "dirichlet" and "shards" look at
            their values. `groups` (samples,) say which samples belong together, by any value;
            only "natural" looks at them.
        Guarantees: the shares are disjoint, cover every sample, and have at least `min_samples`
            each; the same arguments give the same shares. Memory is proportional to samples and
            clients, with no object a client.
        Raises:
            ConfigError: `targets` are not one label a sample, or samples or groups are too few.
        """
        if targets.ndim != 1:
            raise ConfigError(f"targets must be one label a sample, got shape {targets.shape}")
        if count < 1:
            raise ConfigError(f"clients must be >= 1, got {count}")
        if len(targets) < count * self.min_samples:
            raise ConfigError(
                f"{len(targets)} samples are too few for {count} clients with at least "
                f"{self.min_samples} each: lower clients or min_samples"
            )
        division = self._divided(targets, count, np.random.default_rng(seed), groups)
        if not self.looks_at_groups:
            division.fill_up(self.min_samples)
        elif (least := int(division.sizes.min())) < self.min_samples:
            raise ConfigError(
                f"a client's groups have {least} samples, fewer than min_samples = "
                f"{self.min_samples}, and groups stay whole: lower clients or min_samples"
            )
        return division.shares()

    def _divided(
        self,
        targets: NDArray[np.generic],
        count: int,
        rng: np.random.Generator,
        groups: NDArray[np.generic] | None,
    ) -> Division:
        samples = len(targets)
        divide: Mapping[PartitionKind, Callable[[], Division]] = {
            "iid": lambda: kinds.iid(samples, count, rng),
            "dirichlet": lambda: kinds.dirichlet(targets, count, rng, alpha=self.alpha),
            "shards": lambda: kinds.shards(
                targets, count, rng, classes_per_client=self.classes_per_client
            ),
            "size": lambda: kinds.size(samples, count, rng, alpha=self.alpha),
            "natural": lambda: kinds.natural(groups, samples, count, rng),
            "feature": lambda: kinds.iid(samples, count, rng),
        }
        return divide[self.kind]()
