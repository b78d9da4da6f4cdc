"""A site's data as batches: every sample once, in an order that the seed decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from meadow.errors import DataError
from meadow.training.batches import FEW, batches_of, first_order, samples_in

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


def big(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return samples of 512 KB each: too many bytes to be brought into an order at once."""
    return torch.rand(count, 1 << 17), torch.arange(count)


@pytest.mark.parametrize("skip", [0, 1, 3])
@pytest.mark.parametrize(
    "data", [(INPUTS, TARGETS), big(5), (INPUTS, INPUTS)], ids=["small", "large", "wide targets"]
)
def test_batches_are_rows_in_the_order(data: tuple[torch.Tensor, torch.Tensor], skip: int) -> None:
    """Of few bytes and of many, of targets of any shape: those that indexing gives."""
    order = first_order(data, 7)
    assert order is not None
    for known in (None, order):
        found = list(batches_of(data, 2, seed=7, order=known, skip=skip))
        chosen = order.split(2)[skip:]
        assert len(found) == len(chosen)
        for places, (inputs, targets) in zip(chosen, found, strict=True):
            assert torch.equal(inputs, data[0][places]) and torch.equal(targets, data[1][places])


def test_sparse_inputs_come_in_batches() -> None:
    """As before they are indexed, batch by batch."""
    inputs = torch.eye(6).to_sparse()
    batches = list(batches_of((inputs, torch.arange(6)), 4, seed=1))
    dense = torch.cat([some.to_dense() for some, _ in batches])
    assert torch.equal(dense, torch.eye(6)[torch.cat([targets for _, targets in batches])])


def test_a_batch_that_is_changed_changes_no_other() -> None:
    """Nor the data; and autograd does not take it for a change of the others."""
    held = INPUTS.clone(), TARGETS.clone()
    weight = torch.ones(1, requires_grad=True)
    first, second, _ = (inputs for inputs, _ in batches_of(held, 4, seed=1))
    expected = second.clone()
    loss = (first * weight).sum()
    second.mul_(3)
    loss.backward()
    assert torch.equal(second, expected * 3) and torch.equal(held[0], INPUTS)
    first.requires_grad_()
    assert first.is_leaf and first._base is None


def test_an_order_that_is_too_old_is_not_followed() -> None:
    """A Dataset may grow between two epochs."""
    order = first_order((INPUTS[:5], TARGETS[:5]), 3)
    grown = torch.cat(
        [targets for _, targets in batches_of((INPUTS, TARGETS), 4, seed=3, order=order)]
    )
    assert sorted(grown.tolist()) == list(range(10))


def test_the_first_order_of_many_or_of_a_loader_is_not_known() -> None:
    """It would have to be kept until they are asked for."""
    many = torch.zeros(FEW + 1)
    assert first_order((many, many), 1) is None
    assert first_order(loader(), 1) is None
    assert first_order(Squares(), 1) is not None


def test_each_batch_of_data_with_gradients_has_its_own_graph() -> None:
    """As people ask for by `requires_grad_()` on inputs, for a penalty on their gradients."""
    inputs = INPUTS.clone().requires_grad_()
    for some, _ in batches_of((inputs, TARGETS), 4, seed=1):
        some.square().sum().backward()
    assert inputs.grad is not None and torch.equal(inputs.grad, 2 * INPUTS)
