"""The survey of a division: counts by hand, data of every kind, errors that name the client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import meadow
from meadow.errors import ConfigError, DataError
from meadow.partitioning.partition import Partition
from meadow.reports.partition_survey import Survey, quantiles, survey

TARGETS = torch.tensor([0, 0, 0, 1, 2, 2])
INPUTS = torch.zeros(6, 2)


class Pictures(Dataset[Any]):
    """Knows its targets, and must not be decoded."""

    targets = TARGETS

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("an input was decoded")


class Opaque(Dataset[Any]):
    """Does not say its targets: they must be read."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return INPUTS[index], int(TARGETS[index])


def surveyed(load: Any, clients: int = 2) -> Survey:
    task = meadow.Task(model=nn.Identity, loss=lambda outputs, targets: targets, client_data=load)
    return survey(task, Partition(), clients=clients, seed=0)


def halves(site: meadow.Site) -> torch.Tensor:
    return torch.arange(3) + 3 * site.index


KINDS: dict[str, Any] = {
    "pair": lambda chosen: (INPUTS[chosen], TARGETS[chosen]),
    "subset of tensors": lambda chosen: Subset(TensorDataset(INPUTS, TARGETS), chosen.tolist()),
    "subset by tensor": lambda chosen: Subset(TensorDataset(INPUTS, TARGETS), chosen),
    "subset of pictures": lambda chosen: Subset(Pictures(), chosen.tolist()),
    "subset of anything": lambda chosen: Subset(Opaque(), chosen.tolist()),
    "loader": lambda chosen: DataLoader(Subset(Pictures(), chosen.tolist()), batch_size=2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_counted(kind: str) -> None:
    """Two clients of three samples: {0: 3} and {1: 1, 2: 2}, 2/3 and 1/2 away from all."""
    found = surveyed(lambda site: meadow.ClientData(train=KINDS[kind](halves(site))))
    assert found.labels is not None
    assert found.labels.classes.tolist() == [0, 1, 2]
    assert found.labels.counts.tolist() == [[3, 0, 0], [0, 1, 2]]
    assert found.labels.classes_each.tolist() == [1, 2]
    assert np.allclose(found.labels.shares, [[1, 0, 0], [0, 1 / 3, 2 / 3]])
    assert np.allclose(found.labels.distances, [0.5, 0.5])
    assert found.train.tolist() == [3, 3] and found.test.tolist() == [0, 0]


def test_equal_labels_have_no_distance() -> None:
    """Clients with the same distribution are 0 away, whatever their sizes."""

    def load(site: meadow.Site) -> meadow.ClientData:
        targets = torch.tensor([0, 1, 1] * (site.index + 1))
        return meadow.ClientData(train=(targets, targets), test=(targets[:1], targets[:1]))

    found = surveyed(load, clients=4)
    assert found.labels is not None
    assert np.allclose(found.labels.distances, 0)
    assert found.train.tolist() == [3, 6, 9, 12] and found.test.tolist() == [1] * 4


@pytest.mark.parametrize("targets", [torch.arange(8.0), torch.arange(1001)])
def test_numbers_have_means(targets: torch.Tensor) -> None:
    """Floating-point targets, and more than a thousand whole ones, are no classes."""
    found = surveyed(lambda site: meadow.ClientData(train=(targets, targets)), clients=1)
    assert found.labels is None
    assert found.means.tolist() == [float(targets.double().mean())]
    assert np.isclose(found.deviations[0], float(targets.double().std(correction=0)))


def test_the_site_has_the_rule_and_the_seed() -> None:
    """The task is asked as a run would ask it."""
    rule, asked = Partition(kind="shards"), []

    def load(site: meadow.Site) -> meadow.ClientData:
        asked.append((site.index, site.count, site.partition, site.seed))
        return meadow.ClientData(train=(INPUTS, TARGETS))

    task = meadow.Task(model=nn.Identity, loss=lambda outputs, targets: targets, client_data=load)
    survey(task, rule, clients=3, seed=5)
    assert asked == [(index, 3, rule, 5) for index in range(3)]


def broken(site: meadow.Site) -> meadow.ClientData:
    raise KeyError("no such column")


FAULTS: dict[str, tuple[Any, type[Exception], str]] = {
    "raises": (broken, DataError, "client 0: client_data raised 'no such column'"),
    "returns a pair": (lambda site: (INPUTS, TARGETS), DataError, "client 0: .* got a tuple"),
    "too few": (
        lambda site: site.share_of([1]),
        ConfigError,
        "client 0: 1 samples are too few for 2 clients",
    ),
    "empty": (
        lambda site: meadow.ClientData(train=(INPUTS[:0], TARGETS[:0])),
        DataError,
        "client 0: there are no samples",
    ),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_name_the_client(kind: str) -> None:
    """What the task raises, and what it returns wrongly, is said with the client."""
    load, error, sentence = FAULTS[kind]
    with pytest.raises(error, match=sentence):
        surveyed(load)


def test_quantiles_of_known_numbers() -> None:
    """Percentiles of 0 to 100 are themselves."""
    found = quantiles(np.arange(101))
    assert found == {"min": 0, "p5": 5, "median": 50, "p95": 95, "max": 100, "mean": 50}
