"""Partial sums: a round in pieces has the mean of a round in one."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays, tensors_of
from meadow.simulations.executors.processes.partial import (
    GROUP_MAX,
    GROUP_MIN,
    GroupSum,
    Partial,
    Total,
    held_at_once,
    partial_content,
    sums_in,
)
from meadow.strategies.algorithms.algorithm import Update
from meadow.strategies.algorithms.combined import clients_of, columns_in
from meadow.strategies.algorithms.mean import MeanAggregator

identify_process(run_id=1, node_id=0)

Model = dict[str, NDArray[Any]]
CLIENTS = range(1, 31)


def model(seed: int) -> Model:
    """Return params of every kind that a model may have."""
    rng = np.random.default_rng(seed)
    real = rng.normal(size=(3, 5))
    return {
        "single": real.astype(np.float32),
        "half": real.astype(np.float16),
        "brain": real.astype(ml_dtypes.bfloat16),
        "complex": (real + 1j * real[::-1]).astype(np.complex64),
        "counter": np.asarray(rng.integers(0, 1 << 40)),
        "flags": rng.random(4) > 0.5,
        "nothing": np.zeros((0, 2), np.float32),
    }


LIKE = model(0)


def weight_of(client: int) -> int:
    return 3 + client * client % 17


def reply(client: int, params: Model | None = None) -> Message:
    message = Message(RecordDict(), client, "train", group_id="1")
    metrics = MetricRecord({"num-examples": weight_of(client), "loss": 1.0 / client})
    arrays = params_to_arrays(params or model(client))
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def partial(clients: list[int]) -> Partial | None:
    group = GroupSum(LIKE)
    for client in clients:
        assert group.take(reply(client), combined=False) is None
    return group.finish()


def total(parts: list[tuple[int, Partial | None]]) -> Model:
    sums = Total(LIKE)
    for group, part in parts:
        sums.add(group, part)
    finished = sums.finish()
    assert finished is not None
    return arrays_to_params(finished[1].array_records["arrays"])


@pytest.mark.parametrize("cuts", [[7, 8], [1, 2, 3, 29], [15], []])
def test_pieces_have_the_mean_of_the_whole(cuts: list[int]) -> None:
    """To the bit, for every dtype and wherever the cohort is cut."""
    aggregator = MeanAggregator()
    updates = [
        Update(
            client=client, params=tensors_of(params_to_arrays(model(client))),
            weight=float(weight_of(client)),
        )
        for client in CLIENTS
    ]  # fmt: skip
    expected = aggregator.finish(aggregator.fold(aggregator.zero(LIKE), updates)).mean
    ids, bounds = list(CLIENTS), [0, *cuts, len(CLIENTS)]
    found = total([(n, partial(ids[a:b])) for n, (a, b) in enumerate(pairwise(bounds))])
    for name, values in expected.items():
        assert found[name].dtype == values.dtype and found[name].shape == values.shape
        assert np.array_equal(found[name], values), name


def test_sums_that_need_many_bits_are_exact() -> None:
    """Values of which a float64 sum loses the small one: the mean of three groups still has it."""
    like = {"value": np.zeros(1)}
    sums = Total(like)
    for place, value in enumerate((1e200, 1.0, -1e200)):
        group = GroupSum(like)
        message = reply(place + 1, {"value": np.array([value])})
        message.content["metrics"]["num-examples"] = 2
        assert group.take(message, combined=False) is None
        sums.add(place, group.finish())
    finished = sums.finish()
    assert finished is not None
    assert arrays_to_params(finished[1].array_records["arrays"])["value"] == [1.0 / 3.0]


def test_the_order_of_groups_does_not_matter() -> None:
    """Partials come when they come; the bits are the same, a group without updates included."""
    parts = [(0, partial([1, 2])), (1, None), (2, partial([5])), (3, partial([8, 9]))]
    expected = total(parts)
    for order in permutations(parts):
        found = total(list(order))
        assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_no_sum_waits_for_another() -> None:
    """Whichever group comes first is added up: what a round holds does not grow with its groups."""
    sums = Total(LIKE)
    for client in range(100, 1, -1):
        sums.add(client, partial([client]))
        assert len(sums._fold._waiting) < GROUP_MAX


def test_of_a_large_model_few_updates_are_held() -> None:
    """A hundred values take as good as nothing; of 40 MB each, what is held is bounded by number."""
    assert held_at_once({"value": np.zeros(100, np.float32)}) == GROUP_MAX
    assert held_at_once({"value": np.zeros(200_000, np.float32)}) == 20
    assert held_at_once({"value": np.broadcast_to(np.float32(0), 10_000_000)}) == GROUP_MIN


def test_a_half_is_rounded_to_even() -> None:
    """The sums of integers are exact: what lies in the middle stays there until it is cast."""
    counts = {1: 2, 2: 3}
    sums = Total({"counter": np.asarray(0)})
    for place, (client, count) in enumerate(counts.items()):
        group = GroupSum({"counter": np.asarray(0)})
        message = reply(client, {"counter": np.asarray(count)})
        message.content["metrics"]["num-examples"] = 7
        assert group.take(message, combined=False) is None
        sums.add(place, group.finish())
    finished = sums.finish()
    assert finished is not None
    assert arrays_to_params(finished[1].array_records["arrays"])["counter"] == 2


def test_bad_updates_are_not_added() -> None:
    """They become error replies that name the field; errors pass as they are."""
    group = GroupSum(LIKE)
    broken = model(1)
    broken["single"][0, 0] = np.nan
    refused = group.take(reply(1, broken), combined=False)
    assert refused is not None and refused.has_error()
    assert refused.metadata.src_node_id == 1
    assert "'single' has values that are not finite" in str(refused.error.reason)
    message = Message(RecordDict(), 3, "train", group_id="1")
    error = Message(Error(2, "no data"), reply_to=message)
    assert group.take(error, combined=False) is error
    assert group.take(reply(2), combined=False) is None
    part = group.finish()
    assert part is not None and part.table.clients == [2]
    only = arrays_to_params(params_to_arrays(part.sums))
    assert only["counter"] == model(2)["counter"] * weight_of(2)


def test_replies_may_stand_for_many_already() -> None:
    """As those of an executor that adds up itself: their clients, weights and rows all count."""
    single, inner = partial([1, 2, 3, 4]), Total(LIKE)
    inner.add(0, partial([2, 3]))
    finished = inner.finish()
    assert single is not None and finished is not None
    message = Message(RecordDict(), 2, "train", group_id="1")
    group = GroupSum(LIKE)
    replies = [reply(4), Message(finished[1], reply_to=message), reply(1)]
    assert [group.take(each, combined=True) for each in replies] == [None] * 3
    part = group.finish()
    assert part is not None and part.weights == single.weights
    assert sorted(part.table.clients) == [1, 2, 3, 4]
    assert sorted(map(str, part.table.examples)) == sorted(map(str, single.table.examples))
    sums, expected = (arrays_to_params(params_to_arrays(p.sums)) for p in (part, single))
    np.testing.assert_allclose(sums["single"], expected["single"], rtol=1e-6)


def test_a_group_without_updates_has_no_partial() -> None:
    """And a round without any has no reply that stands for clients."""
    assert GroupSum(LIKE).finish() is None
    sums = Total(LIKE)
    sums.add(0, None)
    assert sums.finish() is None


def test_the_reply_lists_its_clients() -> None:
    """In the order of the groups, with what each reported and the mean over all."""
    sums = Total(LIKE)
    sums.add(1, partial([4, 6]))
    sums.add(0, partial([2]))
    finished = sums.finish()
    assert finished is not None
    clients, content = finished
    assert clients == [2, 4, 6]
    message = Message(content, 2, "train")
    assert list(clients_of(message)) == [2, 4, 6]
    metrics = content.metric_records["metrics"]
    weights = [weight_of(client) for client in (2, 4, 6)]
    assert columns_in(metrics)["num-examples"] == weights
    assert columns_in(metrics)["loss"] == [1 / client for client in clients]
    assert metrics["num-examples"] == sum(weights)
    expected = sum(w / c for w, c in zip(weights, (2, 4, 6), strict=True)) / sum(weights)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-15)


def test_sums_can_be_written() -> None:
    """As records of float64 tensors, complex ones as complex128, and of what these lack."""
    part = partial([1, 2])
    assert part is not None
    sums, rests = sums_in(partial_content(part))
    assert {tensor.dtype.name for tensor in sums.values()} == {"float64", "complex128"}
    assert {name: tensor.dtype.name for name, tensor in rests.items()} == {
        "positions": "int64",
        "values": "float64",
    }
