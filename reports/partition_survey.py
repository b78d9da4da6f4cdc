"""What each client of a simulation got: its samples, its classes, and how far they are from all.

It asks the task itself, so it shows what a run would train on, whatever the task does with its
share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Subset, TensorDataset

from ..errors import DataError, MeadowError
from ..partitioning.partition import Partition
from ..task import ClientData, Site, Task
from ..training.batches import batches_of, samples_in

if TYPE_CHECKING:
    from ..task import Data

__all__ = ["Labels", "Survey", "quantiles", "survey"]

CLASSES_MAX = 1_000
READ_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """How often each client has each class.

    Attributes:
        classes: the labels there are, (classes,), sorted.
        counts: (clients, classes).
    """

    classes: NDArray[np.int64]
    counts: NDArray[np.int64]

    @property
    def shares(self) -> NDArray[np.float64]:
        """Each client's distribution over the classes: rows that sum to 1."""
        totals = np.maximum(self.counts.sum(axis=1, keepdims=True), 1)
        return np.asarray(self.counts / totals, dtype=np.float64)

    @property
    def classes_each(self) -> NDArray[np.int64]:
        """How many classes each client has."""
        return np.asarray((self.counts > 0).sum(axis=1))

    @property
    def distances(self) -> NDArray[np.float64]:
        """Each client's total variation distance from all clients' labels together.

        Units: 0 is the same distribution; it stays below 1.
        """
        overall = self.counts.sum(axis=0) / max(int(self.counts.sum()), 1)
        return np.asarray(np.abs(self.shares - overall).sum(axis=1) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What every client has; all arrays are (clients,).

    Attributes:
        train: samples to train on.
        test: samples to test on, 0 without test data.
        labels: of the training targets, if these are classes: whole numbers, not too many.
        means, deviations: of the training targets as numbers.
    """

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    means: NDArray[np.float64]
    deviations: NDArray[np.float64]
    labels: Labels | None


def survey(
    task: Task,
    rule: Partition,
    *,
    clients: int,
    seed: int,
    explain: Callable[[Exception], str] = str,
) -> Survey:
    """Return what `task.client_data` gives each of `clients` simulated sites.

    `explain` says in a sentence what the task's own code raised.

    Raises:
        MeadowError: a site's data cannot be loaded or used; the text names the client.
    """
    sizes = np.zeros((2, clients), dtype=np.int64)
    moments = np.zeros((2, clients))
    found: list[tuple[NDArray[Any], NDArray[np.int64]]] = []
    for index in range(clients):
        site = Site(index=index, count=clients, partition=rule, seed=seed)
        try:
            targets, tests = _had_by(site, task)
        except MeadowError as error:
            raise type(error)(f"client {index}: {error}") from None
        except Exception as error:  # the task's own code may raise anything
            raise DataError(f"client {index}: client_data raised {explain(error)}") from error
        sizes[:, index] = len(targets), tests
        moments[:, index] = targets.mean(dtype=np.float64), targets.std(dtype=np.float64)
        found.append(_counted(targets))
    return Survey(
        train=sizes[0],
        test=sizes[1],
        means=moments[0],
        deviations=moments[1],
        labels=_labels(found),
    )


def _had_by(site: Site, task: Task) -> tuple[NDArray[Any], int]:
    data = task.client_data(site)
    if not isinstance(data, ClientData):
        kind = type(data).__name__
        raise DataError(f"client_data must return a meadow.ClientData, got a {kind}")
    return _targets_in(data.train), 0 if data.test is None else samples_in(data.test)


def quantiles(values: NDArray[Any]) -> Mapping[str, float]:
    """Return the least, the 5th, 50th and 95th percentile, the most and the mean."""
    names = {"min": 0, "p5": 5, "median": 50, "p95": 95, "max": 100}
    at = np.percentile(values, list(names.values()))
    return {**dict(zip(names, at.tolist(), strict=True)), "mean": float(values.mean())}


def _targets_in(data: Data) -> NDArray[Any]:
    """Return all targets, without decoding inputs wherever the data know their targets."""
    if not samples_in(data):
        raise DataError("there are no samples; a site's data must not be empty")
    known = _known_targets(data)
    if known is None:
        parts = [targets for _, targets in batches_of(data, READ_AT_ONCE)]
        known = torch.cat([part.reshape(len(part), -1) for part in parts])
    return known.detach().cpu().numpy()


def _known_targets(data: Any) -> torch.Tensor | None:
    if isinstance(data, DataLoader):
        return _known_targets(data.dataset)
    if isinstance(data, TensorDataset):
        return data.tensors[1] if len(data.tensors) == 2 else None
    if isinstance(data, Subset):
        inner = _known_targets(data.dataset)
        return None if inner is None else inner[torch.as_tensor(data.indices)]
    if isinstance(data, tuple):
        targets: torch.Tensor = data[1]
        return targets
    known = getattr(data, "targets", None)
    return known if isinstance(known, torch.Tensor) and len(known) == len(data) else None


def _counted(targets: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    if targets.dtype.kind not in "biu":
        return targets[:0], np.zeros(0, dtype=np.int64)
    return np.unique(targets, return_counts=True)


def _labels(found: list[tuple[NDArray[Any], NDArray[np.int64]]]) -> Labels | None:
    classes = np.unique(np.concatenate([values.ravel() for values, _ in found]))
    if not 0 < len(classes) <= CLASSES_MAX:
        return None
    counts = np.zeros((len(found), len(classes)), dtype=np.int64)
    for row, (values, each) in zip(counts, found, strict=True):
        row[np.searchsorted(classes, values)] = each
    return Labels(classes=classes.astype(np.int64), counts=counts)
