"""When memory runs out, batches are computed in smaller pieces, and the update stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meadow.errors import DataError
from meadow.training.local.training import LocalTraining
from meadow.training.micro_batch import MicroBatch

from .conftest import Bench, distance

SETTINGS: dict[str, Any] = {"batch_size": 53, "epochs": 3, "learning_rate": 0.1}


@pytest.fixture(scope="module", autouse=True)
def no_norm(bench: Bench) -> None:
    """Leave the batch norm out, which sees the pieces."""
    bench.say("no-norm", "")


def test_batches_are_halved_until_they_fit(bench: Bench) -> None:
    """53 examples do not fit, three times 18 do; the next rounds know that at once."""
    expected, _, means = bench.train(bench.training(), **SETTINGS)
    training = bench.training()
    bench.passes(0)
    bench.say("memory", 20)
    params, samples, told = bench.train(training, **SETTINGS)
    assert distance(params, expected) < 1e-5
    assert samples == 53 and told == pytest.approx(means, rel=1e-5)
    assert [size for size in bench.passes(0) if size > 20] == [53]
    bench.train(training, **SETTINGS)
    assert max(bench.passes(0)) == 18
    (bench.folder / "memory").unlink()


def test_ranks_are_halved_too(bench: Bench, pair: LocalTraining) -> None:
    """A rank whose memory runs out starts the group again, with smaller pieces."""
    expected, *_ = bench.train(bench.training(), **SETTINGS)
    bench.passes(1)
    bench.say("memory", 20)  # each rank has 26 or 27 of 53
    params, samples, _ = bench.train(pair, **SETTINGS)
    (bench.folder / "memory").unlink()
    assert samples == 53
    sizes = bench.passes(1)
    assert max(sizes[1:]) <= 14
    assert distance(params, expected) < 1e-5


def test_a_single_example_that_does_not_fit_is_the_end() -> None:
    """There is nothing left to halve, and the sentence says so."""
    bound = MicroBatch()
    for expected in (6, 3, 1):
        bound.halve(13)
        assert bound.examples_max == expected
    with pytest.raises(DataError, match="memory does not hold the training of a single example"):
        bound.halve(13)


@pytest.mark.parametrize(("rows", "most"), [(7, 8), (8, 8), (0, 1), (2, 3)])
def test_all_ranks_make_as_many_pieces(rows: int, most: int) -> None:
    """The pieces hold each example once, and there are as many as for the largest part."""
    inputs = torch.arange(max(rows, 1))
    pieces = MicroBatch(3).pieces((inputs, inputs), rows=rows, most=most)
    assert len(pieces) == -(-most // 3)
    assert [int(x) for part, _, live in pieces if live for x in part] == list(range(rows))
    assert all(len(part) for part, _, _ in pieces)


def test_the_owner_decides_the_precision(bench: Bench) -> None:
    """What [device] says counts, whatever the run says."""
    said, *_ = bench.train(bench.training(), precision="bf16", **SETTINGS)
    owned, *_ = bench.train(bench.training(precision="bf16"), precision="fp32", **SETTINGS)
    plain, *_ = bench.train(bench.training(), precision="fp32", **SETTINGS)
    assert distance(owned, said) == 0
    assert distance(owned, plain) > 0
