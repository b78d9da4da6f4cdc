"""Means that are written into a file: the bits of those in memory, for everything that a file holds."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from meadow.errors import StoreError
from meadow.flower.messages import MemoryTensor, StoredParams, params_to_arrays
from meadow.strategies.algorithms import mean as mean_module
from meadow.strategies.algorithms.algorithm import Aggregate, Update
from meadow.strategies.algorithms.mean import MeanAggregator
from meadow.transport import tensor_store
from meadow.transport.tensor_store import TensorStore
from meadow.transport.tensors import TensorFile, checksum, whole_file, write_tensors

DTYPES = (
    np.float32,
    ml_dtypes.bfloat16,
    np.bool_,
    np.float64,
    np.int64,
    np.float16,
    np.uint8,
    np.complex64,
    ml_dtypes.float8_e4m3fn,
)


def updates_of(count: int, sizes: tuple[int, ...], seed: int = 1) -> list[dict[str, np.ndarray]]:
    """Values of many dtypes, so that tensors begin at odd places; scalars and empty ones, and one that is
    not contiguous."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        params: dict[str, np.ndarray] = {}
        for size in sizes:
            for dtype in DTYPES:
                name = f"{np.dtype(dtype).name}-{size}"
                params[name] = (generator.standard_normal(size) * 3).astype(dtype)
        params["scalar"] = np.float32(generator.standard_normal()).reshape(())
        params["empty"] = np.empty((0, 3), np.float32)
        params["turned"] = generator.standard_normal((7, 300)).astype(np.float32).T
        found.append(params)
    return found


def folded(aggregator: MeanAggregator, updates: list[dict[str, np.ndarray]], weights: list[float]):
    given = [
        Update(
            client=number,
            params={name: MemoryTensor(values) for name, values in params.items()},
            weight=weight,
            stored=True,
        )
        for number, (params, weight) in enumerate(zip(updates, weights, strict=True))
    ]
    return aggregator.finish(aggregator.fold(aggregator.zero(updates[0]), given))


def same_bits(stored: Aggregate, memory: Aggregate) -> None:
    assert isinstance(stored.mean, StoredParams)
    assert list(stored.mean) == list(memory.mean)
    for name, values in memory.mean.items():
        found = stored.mean[name]
        assert (found.dtype, found.shape) == (values.dtype, values.shape), name
        assert found.tobytes() == values.tobytes(), name


@pytest.mark.parametrize("count", [1, 2, 3, 25], ids=lambda count: f"{count}-updates")
@pytest.mark.parametrize("equal", [True, False], ids=["equal-weights", "unequal"])
@pytest.mark.parametrize("parallel", [1, 1 << 40], ids=["threads", "one-thread"])
def test_a_stored_mean_has_the_bits_of_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, equal: bool, parallel: int
) -> None:
    """Over all dtypes, scalars, empty tensors and tensors that are not contiguous; its file is that of the
    other mean, to the byte, also where pages are given back while it is written."""
    monkeypatch.setattr(mean_module, "PARALLEL_VALUES_MIN", parallel)
    monkeypatch.setattr(mean_module, "WRITTEN_BLOCKS", 1)
    updates = updates_of(count, (1, 5, 40_000))
    weights = [1.0 if equal else 1.0 + number / 3 for number in range(count)]
    memory = folded(MeanAggregator(), updates, weights)
    store = MeanAggregator(store=lambda forms: TensorStore(tmp_path / "mean", forms))
    stored = folded(store, updates, weights)
    same_bits(stored, memory)
    info = write_tensors(tmp_path / "other", dict(memory.mean), fsync=False)
    assert checksum(tmp_path / "mean") == info
    file = whole_file(stored.mean.tensors)
    assert isinstance(file, TensorFile) and file.info == info


def test_an_altered_mean_is_stored_too(tmp_path: Path) -> None:
    """What changes a mean before it is rounded sees the same values, in the same order."""
    updates = updates_of(3, (40_000,))

    def altered(aggregator: MeanAggregator) -> Aggregate:
        generator = np.random.default_rng(7)
        accumulator = aggregator.zero(updates[0])
        for number, params in enumerate(updates):
            tensors = {name: MemoryTensor(values) for name, values in params.items()}
            update = Update(client=number, params=tensors, weight=1.0, stored=True)
            accumulator = aggregator.fold(accumulator, [update])

        def noise(block, values) -> None:
            values += generator.standard_normal(len(values))

        return aggregator.finish(accumulator, noise)

    store = MeanAggregator(store=lambda forms: TensorStore(tmp_path / "mean", forms))
    same_bits(altered(store), altered(MeanAggregator()))


def test_sums_in_memory_and_small_means_need_no_store(tmp_path: Path) -> None:
    """A store is not asked where groups were added up before, and may have no place: the mean is in memory."""
    updates = updates_of(30, (10,))
    weights = [1.0] * 30
    memory = folded(MeanAggregator(), updates, weights)
    declined = folded(MeanAggregator(store=lambda forms: None), updates, weights)
    for name, values in memory.mean.items():
        assert declined.mean[name].tobytes() == values.tobytes()
    large = {"w": np.arange(40_000, dtype=np.float32)}
    aggregator = MeanAggregator(store=lambda forms: pytest.fail("it was asked"), group=2)
    held = [
        Update(client=n, params={"w": MemoryTensor(large["w"] + n)}, weight=1.0) for n in range(5)
    ]
    mean = aggregator.finish(aggregator.fold(aggregator.zero(large), held)).mean
    assert mean["w"].tobytes() == (large["w"] + 2).tobytes()


def test_what_a_file_cannot_hold_as_it_is_does_not_fit() -> None:
    """Another byte order, or a dtype that the format lacks."""
    assert TensorStore.fits([np.dtype(dtype) for dtype in DTYPES])
    assert not TensorStore.fits([np.dtype(">f4")])
    assert not TensorStore.fits([np.dtype(np.complex128)])


def test_a_full_disk_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All space is taken first, since a write to mapped memory could only end the process; nothing is left."""

    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_store.os, "posix_fallocate", full)
    with pytest.raises(StoreError, match=r"No space left on device; it takes 1\d\d bytes"):
        TensorStore(tmp_path / "mean", {"w": (np.dtype(np.float32), (10,))})
    assert not list(tmp_path.iterdir())


def test_stored_params_become_a_record_without_being_read(tmp_path: Path) -> None:
    """A record of stored params holds their tensors, not arrays."""
    write_tensors(tmp_path / "file", {"w": np.ones(3), "b": np.zeros((), bool)}, fsync=False)
    params = StoredParams(TensorFile.open(tmp_path / "file", size_max=1000).tensors)
    record = params_to_arrays(params)
    assert [array.tensor for array in record.values()] == list(params.tensors.values())
    assert len(params) == 2 and not params["b"] and params["w"].sum() == 3


def test_memory_stays_within_a_window(tmp_path: Path) -> None:
    """Of a mean of 200 MB less than a quarter is resident at any time while it is written."""
    values = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (50_000_000,), (0,))

    class Ones:
        dtype, shape = values.dtype, values.shape

        def __getitem__(self, part: slice) -> np.ndarray:
            return values[part]

        def numpy(self) -> np.ndarray:
            return values

    def resident_kb() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(x.split()[1]) for x in lines if x.startswith("RssFile"))

    peak = 0

    class Watched(TensorStore):
        def wrote(self, first, last) -> None:
            nonlocal peak
            super().wrote(first, last)
            peak = max(peak, resident_kb())

    before = resident_kb()
    aggregator = MeanAggregator(store=lambda forms: Watched(tmp_path / "mean", forms))
    updates = [Update(client=n, params={"w": Ones()}, weight=1.0, stored=True) for n in range(2)]
    accumulator = aggregator.fold(aggregator.zero({"w": values}), updates)
    mean = aggregator.finish(accumulator).mean
    assert mean["w"][-1] == 1.0
    assert 0 < peak - before + 1 < 50_000
