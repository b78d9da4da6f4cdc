"""The weighted mean: numbers by hand, every dtype, and laws."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from itertools import zip_longest

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meadow.errors import ConfigError, RunError, StoreError
from meadow.flower.messages import MemoryTensor
from meadow.strategies.algorithms import mean as mean_module
from meadow.strategies.algorithms.algorithm import Update
from meadow.strategies.algorithms.exact_sums import exact_parts, exact_sums
from meadow.strategies.algorithms.layout import RowLayout
from meadow.strategies.algorithms.mean import MeanAggregator
from meadow.transport.tensors import TensorFile, write_tensors


def mean_of(updates, like, aggregator=None):
    aggregator = aggregator or MeanAggregator()
    return aggregator.finish(aggregator.fold(aggregator.zero(like), updates))


def test_two_clients_and_three_params_by_hand(kit):
    """(1 * [1, 2, 3] + 3 * [5, 6, 7]) / 4 is [4, 5, 6]."""
    updates = [kit.update(1, 1.0, {"w": [1.0, 2.0, 3.0]}), kit.update(2, 3.0, {"w": [5.0, 6, 7]})]
    aggregate = mean_of(updates, {"w": np.zeros(3)})
    np.testing.assert_array_equal(aggregate.mean["w"], [4.0, 5.0, 6.0])
    assert (aggregate.weight, aggregate.clients) == (4.0, 2)


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64, np.complex128]
)
def test_a_mean_keeps_its_dtype_and_is_rounded_once(kit, dtype):
    """Small floats are summed in float64: many tiny terms beside a large one are not lost."""
    like = {"w": np.zeros(3, dtype)}
    values = [np.array([1.0, 256.0, 3.0], dtype)] + [np.array([1, 0.5, 3], dtype)] * 99
    updates = [kit.update(i, 1.0, {"w": value}) for i, value in enumerate(values)]
    result = mean_of(updates, like).mean["w"]
    exact = np.array([1.0, (256 + 99 * 0.5) / 100, 3.0])
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, exact.astype(dtype))


def test_integers_are_rounded_half_to_even_and_booleans_at_a_half(kit):
    """Counters and masks are averaged like everything else, and come back as what they are."""
    like = {"i": np.zeros(3, np.int64), "u": np.zeros(1, np.uint8), "b": np.zeros(3, bool)}
    first = {"i": np.array([1, 2, -3]), "u": np.array([255], np.uint8)}
    second = {"i": np.array([2, 3, -4]), "u": np.array([254], np.uint8)}
    masks = np.array([True, False, True]), np.array([False, False, True])
    updates = [
        kit.update(1, 1.0, first | {"b": masks[0]}),
        kit.update(2, 1.0, second | {"b": masks[1]}),
    ]
    result = mean_of(updates, like).mean
    np.testing.assert_array_equal(result["i"], [2, 2, -4])
    np.testing.assert_array_equal(result["u"], [254])
    np.testing.assert_array_equal(result["b"], [True, False, True])
    assert [result[name].dtype for name in like] == [like[name].dtype for name in like]


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_the_largest_integer_does_not_wrap_around(kit, dtype):
    """float64 has no 2**63 - 1; its neighbour above would wrap to the smallest integer."""
    largest = np.array([np.iinfo(dtype).max], dtype)
    result = mean_of([kit.update(1, 3.0, {"i": largest})], {"i": largest}).mean["i"]
    assert result[0] > np.iinfo(dtype).max - 4096


def test_scalars_empty_tensors_and_empty_models(kit):
    """Shapes () and (0, 5) come back as they are, and so does a model without tensors."""
    params = kit.model()
    result = mean_of([kit.update(1, 2.0, params), kit.update(2, 5.0, params)], params).mean
    assert {name: values.shape for name, values in result.items()} == {
        name: values.shape for name, values in params.items()
    }
    assert kit.bytes_of(result) == kit.bytes_of(params)
    assert mean_of([kit.update(1, 1.0, {})], {}).mean == {}


def test_equal_params_stay_as_they_are(kit):
    """Weights cancel exactly: the mean of equal float32 params is these params, bit for bit."""
    params = {"w": np.random.default_rng(1).standard_normal(1000).astype(np.float32)}
    updates = [kit.update(i, 7.0 * i + 1, params) for i in range(33)]
    assert mean_of(updates, params).mean["w"].tobytes() == params["w"].tobytes()


@pytest.mark.parametrize("weight", [1.0, 3.0, 40.0])
def test_the_mean_of_one_update_is_its_values_in_the_params_dtypes(kit, weight):
    """In memory of its own, without minus zero; wider values, as of a group, are rounded."""
    like = {
        "w": np.zeros((2, 2), np.float32),
        "i": np.zeros((), np.int64),
        "c": np.zeros(2, np.complex64),
        "b": np.zeros(2, bool),
        "none": np.zeros((0, 3), np.float32),
    }
    own = {
        "w": np.array([[0.1, -0.0], [1e30, -7]], np.float32),
        "i": np.array(3),
        "c": np.array([1 - 0.1j, -0.0], np.complex64),
        "b": np.array([True, False]),
        "none": np.zeros((0, 3), np.float32),
    }
    wide = {
        "w": np.array([[0.1, -0.0], [1 + 2.0**-30, -7]]),
        "i": np.array(2.6),
        "c": np.array([1 - 0.1j, -0.0], np.complex128),
        "b": np.array([0.5, 0.25]),
        "none": np.zeros((0, 3)),
    }
    for sent, expected in ((own, own), (wide, {**wide, "i": 3, "b": [True, False]})):
        made = mean_of([kit.update(1, weight, sent)], like).mean
        for name, values in like.items():
            assert (made[name].dtype, made[name].shape) == (values.dtype, values.shape)
            np.testing.assert_array_equal(made[name], np.asarray(expected[name], values.dtype))
            assert not np.shares_memory(made[name], sent[name])
        assert not np.signbit(made["w"][0, 1]) and not np.signbit(made["c"][1].real)


def test_nothing_to_aggregate_is_an_error(kit):
    """A mean of nothing has no value."""
    aggregator = MeanAggregator()
    with pytest.raises(RunError, match="no updates"):
        aggregator.finish(aggregator.zero(kit.model()))


def test_a_dtype_wider_than_float64_is_refused():
    """float128 could not be summed without loss."""
    with pytest.raises(ConfigError, match="'w' has dtype"):
        MeanAggregator().zero({"w": np.zeros(2, np.longdouble)})


def mixed(generator, shapes):
    dtypes = [np.float32, np.float64, np.complex64, np.int32, np.bool_, ml_dtypes.bfloat16]
    return {
        f"t{index}": np.asarray(generator.integers(-9, 9, shape), dtypes[index % len(dtypes)])
        for index, shape in enumerate(shapes)
    }


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shapes=st.lists(st.lists(st.integers(0, 7), max_size=3).map(tuple), max_size=9),
    clients=st.integers(1, 9),
    group=st.integers(1, 5),
    block=st.integers(1, 16),
    cut=st.integers(0, 9),
)
def test_blocks_groups_and_calls_only_change_the_speed(
    kit, seed, shapes, clients, group, block, cut
):
    """However tensors fall into blocks and updates into groups and calls, integers add up."""
    generator = np.random.default_rng(seed)
    models = [mixed(generator, shapes) for _ in range(clients)]
    weights = [float(w) for w in generator.integers(1, 50, clients)]
    updates = [kit.update(i, w, m) for i, (w, m) in enumerate(zip(weights, models, strict=True))]
    aggregator, before = MeanAggregator(group=group), mean_module.BLOCK
    mean_module.BLOCK = block
    try:
        total = aggregator.fold(aggregator.zero(models[0]), updates[:cut])
        result = aggregator.finish(aggregator.fold(total, updates[cut:])).mean
    finally:
        mean_module.BLOCK = before
    for name, like in models[0].items():
        wide = np.complex128 if like.dtype.kind == "c" else np.float64
        terms = [w * m[name].astype(wide) for w, m in zip(weights, models, strict=True)]
        exact = np.sum(terms, axis=0) / sum(weights)
        if like.dtype.kind == "b":
            exact = exact >= 0.5
        elif like.dtype.kind in "iu":
            exact = np.rint(exact)
        assert result[name].dtype == like.dtype
        assert result[name].shape == like.shape
        np.testing.assert_array_equal(result[name], exact.astype(like.dtype))


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(
        st.tuples(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(1, 10**9).map(float)),
        min_size=1,
        max_size=50,
    )
)
def test_the_error_is_that_of_float64(kit, values):
    """The mean is the exact one within the error of float64 sums and one cast to float32."""
    updates = [kit.update(i, w, {"w": np.float32([v])}) for i, (v, w) in enumerate(values)]
    result = float(mean_of(updates, {"w": np.zeros(1, np.float32)}).mean["w"][0])
    total = sum(Fraction(w) for _, w in values)
    exact = sum(Fraction(v) * Fraction(w) for v, w in values) / total
    scale = sum(abs(Fraction(v)) * Fraction(w) for v, w in values) / total
    slack = Fraction(scale) * Fraction(2) ** -45 + abs(exact) * Fraction(2) ** -24
    assert abs(Fraction(result) - exact) <= slack + Fraction(2) ** -149


def test_a_combined_update_counts_as_its_parts(kit):
    """A mean with its weight can stand for the updates it is made of, within rounding."""
    generator = np.random.default_rng(3)
    updates = [
        kit.update(i, float(generator.integers(1, 100)), {"w": generator.standard_normal(500)})
        for i in range(12)
    ]
    like = {"w": np.zeros(500)}
    part = mean_of(updates[:7], like)
    combined = kit.update(0, part.weight, part.mean)
    together = mean_of([combined, *updates[7:]], like)
    apart = mean_of(updates, like)
    np.testing.assert_allclose(together.mean["w"], apart.mean["w"], rtol=1e-14, atol=1e-15)
    assert together.weight == apart.weight


class Sliced:
    """A tensor that can only be read in slices, and remembers the longest."""

    def __init__(self, array):
        self._flat, self.shape, self.dtype = array.reshape(-1), array.shape, array.dtype
        self.longest = 0

    def __getitem__(self, values):
        part = self._flat[values]
        self.longest = max(self.longest, part.size)
        return part.copy()

    def numpy(self):
        raise AssertionError("loaded as a whole")


def test_updates_are_read_in_slices_and_memory_is_bounded(kit):
    """50 updates of a 16 MB model need the sum (32 MB), scratch space, and nothing more."""
    size = 4_000_000
    like = {"w": np.zeros(size, np.float32)}
    tensor = Sliced(np.ones(size, np.float32))
    aggregator = MeanAggregator()
    tracemalloc.start()
    try:
        total = aggregator.zero(like)
        for client in range(50):
            update = Update(client=client, params={"w": tensor}, weight=2.0)
            total = aggregator.fold(total, [update])
        result = aggregator.finish(total)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    scratch = (2 * 20 + 2) * mean_module.BLOCK * 8
    assert tensor.longest <= mean_module.BLOCK
    assert peak < 8 * size + scratch
    del total
    assert kept < 4 * size + scratch
    assert result.mean["w"].min() == result.mean["w"].max() == 1.0


THREADS = """
import numpy as np
from meadow.flower.messages import MemoryTensor
from meadow.strategies.algorithms.algorithm import Update
from meadow.strategies.algorithms.algorithm import Update
from meadow.strategies.algorithms.mean import BLOCK, MeanAggregator
generator = np.random.default_rng(0)
size = 4 * BLOCK + 4321
updates = [
    Update(client=i, params={"w": MemoryTensor(generator.standard_normal(size))}, weight=i + 1.5)
    for i in range(45)
]
aggregator = MeanAggregator()
total = aggregator.fold(aggregator.zero({"w": np.zeros(size)}), updates)
print(__import__("hashlib").sha256(aggregator.finish(total).mean["w"]).hexdigest())
"""


def test_the_number_of_threads_changes_no_bit():
    """A model is the same on one core and on many."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", THREADS],
            env={**os.environ, "OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "3", "4")
    }
    assert len(digests) == 1


class Unreadable(Sliced):
    """A tensor in a file that has become shorter."""

    def __getitem__(self, values):
        if values.start > self._flat.size // 2:
            raise StoreError("the file ends here")
        return super().__getitem__(values)


def test_an_update_that_cannot_be_read_is_an_error(kit):
    """An update that cannot be read to its end is an error, never a mean without it."""
    like = {"w": np.zeros(20 * mean_module.BLOCK, np.float32)}
    update = Update(client=0, params={"w": Unreadable(like["w"])}, weight=1.0, stored=True)
    with pytest.raises(StoreError, match="the file ends here"):
        mean_of([update], like)


@pytest.mark.parametrize("count", [3, 20, 21, 47])
@pytest.mark.parametrize("stored_max", [8, 512])
def test_updates_in_files_wait_and_give_the_same_bits(kit, monkeypatch, count, stored_max):
    """Stored updates are added at the end, block by block: the result is that of the stream."""
    monkeypatch.setattr(mean_module, "BLOCK", 64)
    monkeypatch.setattr(mean_module, "STORED_MAX", stored_max)
    random = np.random.default_rng(count)
    like = {"w": np.zeros((9, 17), np.float32), "b": np.zeros(5, np.float16)}
    params = [
        {name: random.normal(size=v.shape).astype(v.dtype) for name, v in like.items()}
        for _ in range(count)
    ]
    weights = random.integers(1, 1000, count)
    means = []
    for stored in (set(), set(range(count)), set(range(0, count, 3))):
        updates = [
            replace(kit.update(i, float(weights[i]), params[i]), stored=i in stored)
            for i in range(count)
        ]
        means.append(mean_of(updates, like, MeanAggregator(group=4)).mean)
    for other in means[1:]:
        assert all(other[name].tobytes() == means[0][name].tobytes() for name in like)


@pytest.mark.parametrize("clients", [1, 2, 3, 7, 20, 21, 45])
def test_files_give_what_memory_gives(clients, tmp_path, monkeypatch):
    """Updates in files are added up on all cores, in wider blocks: to the same bits."""
    monkeypatch.setattr(mean_module, "PARALLEL_VALUES_MIN", 1)
    monkeypatch.setattr(mean_module, "available_cores", lambda: 3)
    generator = np.random.default_rng(clients)
    like = {"a": np.zeros(3, np.float32), "w": np.zeros(9 * mean_module.BLOCK + 1237, np.float32)}
    in_memory, in_files = [], []
    for client in range(clients):
        params = {n: generator.standard_normal(v.shape, np.float32) for n, v in like.items()}
        path, weight = tmp_path / str(client), client + 1.25
        write_tensors(path, params, fsync=False)
        tensors = TensorFile.open(path, size_max=1 << 30).tensors
        memory = {name: MemoryTensor(values) for name, values in params.items()}
        in_memory.append(Update(client=client, params=memory, weight=weight))
        in_files.append(Update(client=client, params=tensors, weight=weight, stored=True))
    expected, found = mean_of(in_memory, like).mean, mean_of(in_files, like).mean
    for name in like:
        assert found[name].tobytes() == expected[name].tobytes()


FLOATS32 = st.floats(width=32, allow_nan=False, allow_infinity=False).filter(
    lambda v: abs(v) < 1e30
)


@settings(max_examples=120, deadline=None)
@given(
    rows=st.integers(1, 6).flatmap(
        lambda n: st.lists(
            st.tuples(st.lists(FLOATS32, min_size=5, max_size=5), st.integers(1, 3)),
            min_size=n,
            max_size=n,
        )
    ),
    whole=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32]),
)
def test_the_mean_is_the_correctly_rounded_one(kit, rows, whole, dtype):
    """The sum is the exact one rounded to float64, in fractions: also of ties and cancellation."""
    weights = [w if whole else w / 3 for _, w in rows]
    with np.errstate(over="ignore"):
        models = [np.clip(np.array(v, np.float64), -6e4, 6e4).astype(dtype) for v, _ in rows]
    updates = [
        kit.update(i, w, {"w": m}) for i, (w, m) in enumerate(zip(weights, models, strict=True))
    ]
    result = mean_of(updates, {"w": models[0]}).mean["w"]
    total = float(sum(map(Fraction, weights)))
    pairs = [(Fraction(w), m.astype(float).tolist()) for w, m in zip(weights, models, strict=True)]
    sums = [float(sum(w * Fraction(v[at]) for w, v in pairs)) for at in range(5)]
    means = np.array(sums) / total
    expected = (np.rint(means) if dtype == np.int32 else means).astype(dtype)
    np.testing.assert_array_equal(result.astype(float), expected.astype(float))
    assert not np.signbit(result.astype(float)[result.astype(float) == 0]).any()


@pytest.mark.parametrize(
    "weights", [(7, 7), (600, 600, 600, 600), (2**29 - 1, 2**29 - 3), (1,) * 8]
)
def test_ties_of_a_few_clients_cost_little(kit, monkeypatch, weights):
    """Sums halfway between two means are exact float64, as a look at their rounding errors shows; only sums with one
    are added up in slices. The means are those of fractions, from subnormal values to large ones."""
    sliced = []

    def counted(weights, values):
        sliced.append(values.shape[1])
        return exact_sums(weights, values)

    monkeypatch.setattr(mean_module, "exact_sums", counted)
    generator = np.random.default_rng(len(weights))
    models = [
        {
            "w": generator.standard_normal(40_000).astype(np.float32),
            "far": np.float32(generator.choice([1e-45, 1.0, -3e7, 1e20], 500)),
            "steps": np.array(5),
        }
        for _ in weights
    ]
    for model in models[1:]:  # as after a step of training
        model["w"] = models[0]["w"] + np.float32(0.001) * model["w"]
    updates = [
        replace(kit.update(i, float(w), m), stored=True)
        for i, (w, m) in enumerate(zip(weights, models, strict=True))
    ]
    found = mean_of(updates, models[0]).mean
    for name, size in {"w": 500, "far": 500, "steps": 1}.items():
        columns = np.array([m[name].reshape(-1)[:size].astype(float) for m in models]).T
        total = float(sum(weights))
        sums = [
            float(sum(w * Fraction(v) for w, v in zip(weights, column, strict=True)))
            for column in columns.tolist()
        ]
        expected = (np.array(sums) / total).astype(models[0][name].dtype)
        np.testing.assert_array_equal(found[name].reshape(-1)[:size], expected)
    if weights[0] < 1000:  # else sums have more bits than a float64
        assert sum(sliced) < 2_000, "of 40,000 values, up to half of which are ties"


@pytest.mark.parametrize("group", [2, 20])
def test_groups_in_memory_are_added_up_exactly(kit, group):
    """Of a small model no order and no group changes a bit, though only a group is held."""
    generator = np.random.default_rng(group)
    models = [
        {"w": np.float32(generator.standard_normal(99) * 10.0 ** generator.integers(-9, 9, 99))}
        for _ in range(64)
    ]
    pairs = list(zip(generator.integers(1, 900, 64) / 3, models, strict=True))
    seen = set()
    for _ in range(3):
        generator.shuffle(pairs)
        updates = [kit.update(i, w, m) for i, (w, m) in enumerate(pairs)]
        seen.add(mean_of(updates, models[0], MeanAggregator(group=group)).mean["w"].tobytes())
    updates = [replace(update, stored=True) for update in updates]
    seen.add(mean_of(updates, models[0]).mean["w"].tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("clients", [2, 3, 21, 64])
@pytest.mark.parametrize("equal", [True, False])
def test_no_order_of_updates_changes_a_bit(kit, clients, equal):
    """Also where many sums lie halfway between two float32: those of equal weights do."""
    generator = np.random.default_rng(clients)
    models = [
        {
            "w": np.float32(
                generator.standard_normal(70_000) * 10.0 ** generator.integers(-9, 9, 70_000)
            ),
            "b": generator.standard_normal(50),
            "c": (generator.standard_normal(999) + 1j).astype(np.complex64),
            "h": generator.standard_normal(999).astype(ml_dtypes.bfloat16),
        }
        for _ in range(clients)
    ]
    weights = [7.0 if equal else float(w) for w in generator.integers(1, 900, clients)]
    pairs = list(zip(weights, models, strict=True))
    seen = set()
    for _ in range(3):
        generator.shuffle(pairs)
        updates = [replace(kit.update(i, w, m), stored=True) for i, (w, m) in enumerate(pairs)]
        found = mean_of(updates, models[0], MeanAggregator(group=int(generator.integers(2, 25))))
        seen.add(b"".join(found.mean[name].tobytes() for name in models[0]))
    assert len(seen) == 1


@pytest.mark.parametrize("size", [900, 40_000])
@pytest.mark.parametrize("equal", [True, False])
def test_a_tree_of_sums_gives_the_same_bits(kit, size, equal):
    """Updates that were added up elsewhere, exactly, count as if each had come by itself."""
    generator = np.random.default_rng(size)
    models = [
        {
            "w": np.float32(
                generator.standard_normal(size) * 10.0 ** generator.integers(-9, 9, size)
            ),
            "b": generator.standard_normal(7) * 10.0 ** generator.integers(-20, 20, 7),
            "n": generator.integers(0, 99, 3),
        }
        for _ in range(12)
    ]
    weights = [5.0 if equal else w / 3 for w in generator.integers(1, 900, 12)]
    updates = [kit.update(i, w, m) for i, (w, m) in enumerate(zip(weights, models, strict=True))]
    flat = mean_of(updates, models[0])
    above = [updates[0]]
    for some in (updates[1:3], updates[3:10], updates[10:]):
        rows = np.array([np.concatenate([u.params[n][0:] for n in models[0]]) for u in some])
        sums = exact_sums(np.array([u.weight for u in some]), rows.astype(float))
        layout = RowLayout(models[0])
        first, *rests = mean_module._as_updates(list(sums.rows()), layout)
        parts = exact_parts([u.weight for u in some])
        rests = [
            replace(each, weight=w)
            for each, w in zip_longest(rests, parts[1:], fillvalue=0.0)
            if each
        ]
        above.append(replace(first, weight=parts[0], clients=len(some), rests=tuple(rests)))
    for order in (above, above[::-1]):
        found = mean_of(order, models[0])
        assert found.weight == flat.weight and found.clients == 12
        for name, values in flat.mean.items():
            np.testing.assert_array_equal(found.mean[name], values)
