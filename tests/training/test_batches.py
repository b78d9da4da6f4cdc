"""A site's data as batches: every sample once, in an order that the seed decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from meadow.errors import DataError
from meadow.training.batches import batches_of, samples_in

INPUTS = torch.arange(10, dtype=torch.float32).reshape(10, 1)
TARGETS = torch.arange(10)


class Squares(Dataset[tuple[torch.Tensor, int]]):
    """A Dataset whose samples are made when they are asked for."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return INPUTS[index], index


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(Squares(), batch_size=4, **options)


KINDS: dict[str, Any] = {
    "tensors": lambda: (INPUTS, TARGETS),
    "dataset": Squares,
    "tensor dataset": lambda: TensorDataset(INPUTS, TARGETS),
    "list of pairs": lambda: [(INPUTS[index], index) for index in range(10)],
    "loader": lambda: loader(shuffle=True, generator=torch.Generator()),
    "sampler": lambda: loader(sampler=RandomSampler(Squares(), generator=torch.Generator())),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_comes_once_with_its_target(kind: str) -> None:
    """Batches of 4, 4 and 2, whatever the data are made of."""
    batches = list(batches_of(KINDS[kind](), 4, seed=1))
    assert [len(targets) for _, targets in batches] == [4, 4, 2]
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert sorted(targets.tolist()) == list(range(10))
    assert inputs.flatten().tolist() == targets.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_the_order(kind: str) -> None:
    """The same data twice: the same order for one seed, another for another."""
    data = KINDS[kind]()

    def order(seed: int) -> list[int]:
        batches = batches_of(data, 4, seed=seed)
        return [int(target) for _, targets in batches for target in targets]

    assert order(1) == order(1) != list(range(10))
    assert order(1) != order(2)


def test_tensors_and_datasets_are_drawn_alike() -> None:
    """How the same samples are wrapped does not change the batches."""
    orders = [
        torch.cat([targets for _, targets in batches_of(KINDS[kind](), 4, seed=3)])
        for kind in ("tensors", "dataset", "list of pairs")
    ]
    assert orders[0].tolist() == orders[1].tolist() == orders[2].tolist()


def test_without_a_generator_data_come_as_they_lie() -> None:
    """Evaluation needs no order of its own."""
    for kind in ("tensors", "dataset", "list of pairs"):
        targets = torch.cat([targets for _, targets in batches_of(KINDS[kind](), 3)])
        assert targets.tolist() == list(range(10))


class Stream(IterableDataset[Any]):
    """Data that can only be gone through."""

    def __iter__(self) -> Iterator[Any]:
        return iter([(INPUTS[0], 0)])


class Unsized(Dataset[Any]):
    """Data that do not say how many they are."""

    def __getitem__(self, index: int) -> Any:
        return INPUTS[index], index


USELESS: dict[str, tuple[Any, str]] = {
    "empty": ((INPUTS[:0], TARGETS[:0]), "there are no samples; a site's data must not be empty"),
    "uneven": ((INPUTS, TARGETS[:9]), "there are 10 inputs but 9 targets"),
    "three": ((INPUTS, TARGETS, TARGETS), r"a pair of tensors \(inputs, targets\) is needed"),
    "scalars": ((torch.tensor(1.0), torch.tensor(1)), "a pair of tensors"),
    "arrays": ((INPUTS.numpy(), TARGETS.numpy()), r"got \(ndarray, ndarray\)"),
    "number": (5, "data must be a pair of tensors, a torch Dataset .* got int"),
    "stream": (Stream(), "a torch Dataset with __getitem__, .* got Stream"),
    "stream loader": (DataLoader(Stream()), "got Stream"),
    "unsized": (Unsized(), r"Unsized does not say how many samples it has \(no __len__\)"),
    "no pairs": ([INPUTS[0], INPUTS[1]], r"must be a pair of tensors \(inputs, targets\), got"),
    "no tensors": ([("a", "b")], "must be a pair of tensors"),
}


@pytest.mark.parametrize("kind", USELESS)
def test_useless_data_are_refused(kind: str) -> None:
    """What is wrong with the data is said in a sentence, before anything is trained."""
    data, sentence = USELESS[kind]
    with pytest.raises(DataError, match=sentence):
        list(batches_of(data, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_counted(kind: str) -> None:
    """A loader counts samples, not batches."""
    assert samples_in(KINDS[kind]()) == 10
