"""What a user writes: a `Task` names the model, the loss, the metrics and the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import AppError, ConfigError
from .partitioning.memory import share_of
from .partitioning.partition import Partition
from .partitioning.shift import shifted
from .randomness.seeds import derive

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader, Dataset

    Data = tuple[torch.Tensor, torch.Tensor] | Dataset[Any] | DataLoader[Any]
    Metric: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | AdditiveMetric"

__all__ = ["STATISTICS_MAX", "AdditiveMetric", "AlgorithmNamed", "ClientData", "Site", "Task"]

AlgorithmNamed = Callable[[str, str], Any]
Inputs = TypeVar("Inputs", "torch.Tensor", NDArray[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a client's data lives: one device, one hospital, or one simulated client.

    `index` counts from 0 to `count - 1`; `config` holds the free keys of the client's own file.
    """

    index: int
    count: int
    config: Mapping[str, Any] = field(default_factory=dict)
    partition: Partition = field(default_factory=Partition)
    seed: int = 0

    def share_of(self, targets: ArrayLike, *, groups: ArrayLike | None = None) -> NDArray[np.int64]:
        """Return which samples of one data set belong to this site, as indices.

        For simulations and demonstrations, where `count` sites divide one data set as the
        `[simulation]` section says; a real site has data of its own.

        Shapes: `targets` (samples,) are class labels; `groups` (samples,) say which samples
            belong together, and only the partition "natural" needs them; the result (share,) is
            sorted.
        Guarantees: the shares of all sites are disjoint and cover every sample; the same seed
            gives the same shares. The data set is divided once a process; after that, a tensor
            or a read-only array takes time in proportion to the share alone.
        Raises:
            ConfigError: there are too few samples or groups for the partition that is asked for.
        """
        return share_of(
            self.partition,
            targets,
            self.index,
            count=self.count,
            seed=self.seed,
            groups=groups,
        )

    def shifted(self, inputs: Inputs) -> Inputs:
        """Return inputs, NumPy's or torch's, as this site sees them.

        With the partition "feature" Gaussian noise of variance noise_variance * index / count is
        added; with any other they are returned as they are.

        Guarantees: the same seed, site and shape give the same noise; `inputs` do not change. So
            shift once, before the share is divided into train and test.
        Raises:
            DataError: there is noise to add, and `inputs` are no floating-point numbers.
        """
        if self.partition.kind != "feature":
            return inputs
        variance = self.partition.noise_variance * self.index / self.count
        return shifted(
            inputs, variance=variance, seed=derive(self.seed, "feature-shift", self.index)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientData:
    """One site's data: each a pair of tensors, a torch Dataset, or a DataLoader."""

    train: Data
    test: Data | None = None


def _no_model() -> torch.nn.Module:
    raise AppError("the task has no model, and this strategy trains one: say Task(model=...)")


def _no_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    raise AppError("the task has no loss, and this strategy needs one: say Task(loss=...)")


class AdditiveMetric:
    """A metric that is no mean of examples, computed from means that are: the area under an ROC curve
    from a histogram, F1 from counts. A subclass says which, and what follows from them.

    Clients report the means alone; the server averages them by examples, and computes the value of
    the averages: that of all clients' examples together, not the mean of the clients' values.

    Attributes:
        size: how many numbers an example gives, at most `STATISTICS_MAX`.
    """

    size: int

    def statistics(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return what is averaged over examples: (batch, size)."""
        raise NotImplementedError

    def value(self, means: Sequence[float]) -> float:
        """Return the metric of examples with these means; NaN where it has none."""
        raise NotImplementedError


STATISTICS_MAX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is learned, from what.

    Attributes:
        model: builds the torch module; called with torch's generator already seeded.
        loss: (outputs, targets) -> per-example losses, shape (batch,); `meadow.cross_entropy`, for
            instance.
        metrics: name -> (outputs, targets) -> per-example values, shape (batch,);
            `meadow.accuracy`, for instance. Or an `AdditiveMetric`, as `meadow.auroc()`.
        client_data: loads one site's data; called once per site and process.
        server_data: loads data for central evaluation, if the server has any.
        columns: a site's data as named columns of numbers, one value a row, NaN where there is
            none: what `strategy.name = "analytics"` counts. It needs no model and no loss, and
            boosted trees need no model.
        stages: (module) -> the same module as a list of modules, each for what the one before
            gives; for clients that cut it into a pipeline. An nn.Sequential needs none.
        algorithm: (name, arguments as JSON) -> the `Algorithm` whose client's half an instruction
            asks for; Meadow sets it to what the app's own `strategy.name` says.
    """

    client_data: Callable[[Site], ClientData]
    model: Callable[[], torch.nn.Module] = _no_model
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = _no_loss
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    server_data: Callable[[], Data] | None = None
    columns: Callable[[ClientData], Mapping[str, ArrayLike | torch.Tensor]] | None = None
    stages: Callable[[torch.nn.Module], Sequence[torch.nn.Module]] | None = None
    algorithm: AlgorithmNamed | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, metric in self.metrics.items():
            if isinstance(metric, AdditiveMetric):
                size = getattr(metric, "size", None)
                if type(size) is not int or not 1 <= size <= STATISTICS_MAX:
                    raise ConfigError(
                        f"metric {name!r}: size must be a whole number from 1 to {STATISTICS_MAX}, "
                        f"got {size!r:.80}"
                    )
