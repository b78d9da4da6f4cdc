"""`Devices`: speeds, availability and fates as functions of the seed and the client."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meadow.config.sections.simulation import DevicesConfig
from meadow.errors import ConfigError
from meadow.simulations.devices import device_trace
from meadow.simulations.devices.device_trace import Trace
from meadow.simulations.devices.devices import Devices, DeviceWork

MANY = np.arange(1, 20_001)


def devices(seed: int = 1, **settings: Any) -> Devices:
    return Devices.of(DevicesConfig(**settings), seed=seed, clients=20_000, folder=Path())


def written(folder: Path, text: str, **settings: Any) -> Devices:
    """Return the devices of a CSV file of this text, among three clients."""
    (folder / "file.csv").write_text(text)
    return Devices.of(DevicesConfig(**settings), seed=1, clients=3, folder=folder)


def test_durations_by_hand() -> None:
    """Latency 0.5 + 2,000 bytes down at 1,000 + 300 examples at 100 + 2,000 up at 500 = 9.5 s."""
    alike = devices(
        examples_per_s=100,
        examples_per_s_spread=0,
        download_bytes_per_s=1000,
        upload_bytes_per_s=500,
        bandwidth_spread=0,
        latency_s=0.5,
    )
    work = DeviceWork(bytes_down=2000, bytes_up=2000, examples=np.array([300.0, 0.0]))
    assert alike.durations_s(np.array([1, 2]), work).tolist() == [9.5, 6.5]


def test_speeds_are_log_normal() -> None:
    """Median 1,000 and log-deviation 0.5: the quartiles of log-speed are 0.6745 deviations off."""
    speeds = devices().speed("examples_per_s", MANY, 0.5)
    logs = np.log(speeds / 1000)
    low, middle, high = np.quantile(logs, [0.25, 0.5, 0.75])
    assert abs(middle) < 0.02
    assert abs(high - 0.6745 * 0.5) < 0.02 and abs(low + 0.6745 * 0.5) < 0.02
    assert abs(logs.std() - 0.5) < 0.01


def test_bandwidths_are_drawn_apart() -> None:
    """Who computes fast need not have a fast line, nor one that is fast both ways."""
    some = devices()
    names = ("examples_per_s", "download_bytes_per_s", "upload_bytes_per_s")
    logs = np.log([some.speed(name, MANY, 0.5) for name in names])
    assert np.abs(np.corrcoef(logs) - np.eye(3)).max() < 0.03


def test_shares_of_fates() -> None:
    """A fifth drops out, and a tenth of the others fails; nobody does both."""
    drops, fails = devices(dropout=0.2, failure=0.1).fates(MANY, "1/train")
    assert abs(drops.mean() - 0.2) < 0.01
    assert abs(fails.sum() / (~drops).sum() - 0.1) < 0.01
    assert not (drops & fails).any()


def test_fates_differ_between_occasions() -> None:
    """Who drops out of one round need not drop out of the next."""
    some = devices(dropout=0.5)
    first, second = some.fates(MANY, "1/train")[0], some.fates(MANY, "2/train")[0]
    assert abs((first == second).mean() - 0.5) < 0.02


@given(seed=st.integers(0, 2**63 - 1), ids=st.lists(st.integers(1, 10**7), min_size=1, unique=True))
def test_a_client_is_the_same_in_any_company(seed: int, ids: list[int]) -> None:
    """What is said of a client depends on the seed and itself, whoever is asked for beside it."""
    some = devices(seed, dropout=0.3, failure=0.3, available_share=0.5)
    work = DeviceWork(bytes_down=1e6, bytes_up=1e6, examples=100)
    together, alone = np.array(ids), np.array(ids[:1])
    assert some.durations_s(together, work)[0] == some.durations_s(alone, work)[0]
    assert some.fates(together, "x")[0][0] == some.fates(alone, "x")[0][0]
    assert some.available(together, 1e6)[0] == some.available(alone, 1e6)[0]


def test_seeds_differ() -> None:
    """Another seed gives other devices."""
    one, two = (devices(seed).speed("examples_per_s", MANY, 0.5) for seed in (1, 2))
    assert not (one == two).any()


def test_the_share_is_there() -> None:
    """At any time about three in ten are there, and each for three tenths of a long time."""
    some = devices(available_share=0.3, period_s=100)
    for now_s in (0.0, 50.0, 12_345.6):
        assert abs(some.available(MANY, now_s).mean() - 0.3) < 0.015
    seen = np.mean([some.available(MANY[:50], now_s) for now_s in np.arange(0, 15_000, 3)], axis=0)
    assert np.abs(seen - 0.3).max() < 0.03


def test_periods_have_lengths_of_their_own() -> None:
    """Clients come at intervals between half and one and a half of the mean."""
    some = devices(available_share=0.5, period_s=100)
    assert all(some.next_there_s(MANY, 7.0) - 7.0 < 75.001)
    times_s = np.arange(0, 1500, 0.5)
    there = np.array([some.available(MANY[:200], now_s) for now_s in times_s])
    comings = (there[1:] & ~there[:-1]).sum(axis=0)
    assert comings.min() >= 9 and comings.max() <= 31 and len(set(comings)) > 10


@given(now_s=st.floats(0, 1e7), share=st.floats(0.01, 1))
def test_next_there_is_when_it_is_there(now_s: float, share: float) -> None:
    """Who is not there is at the time that is told, and not half-way to it."""
    some, ids = devices(available_share=share, period_s=50), np.arange(1, 50)
    for id_, next_s in zip(ids, some.next_there_s(ids, now_s), strict=True):
        assert some.available(np.array([id_]), float(next_s))[0]
        if next_s > now_s + 1e-3:
            assert not some.available(np.array([id_]), (now_s + float(next_s)) / 2)[0]


# ---------------------------------------------------------------- files

TRACE = "client,start_s,end_s\n2,50,100\n1,0,10\n1,20,30\n"


def test_a_trace_says_who_is_there(tmp_path: Path) -> None:
    """Its rows come in any order; it begins anew after 100 s; client 3 is not in it."""
    some, ids = written(tmp_path, TRACE, trace="file.csv"), np.array([1, 2, 3])
    expected = {0: [1], 9.9: [1], 10: [], 20: [1], 30: [], 50: [2], 99.9: [2], 100: [1], 150: [2]}
    for now_s, there in expected.items():
        assert ids[some.available(ids, now_s)].tolist() == there, now_s
    assert some.available(np.array([3, 2, 1]), 25).tolist() == [False, False, True]


def test_a_trace_says_when_who_is_there_next(tmp_path: Path) -> None:
    """Later in the trace, or when it has begun anew, or never."""
    some, ids = written(tmp_path, TRACE, trace="file.csv"), np.array([1, 2, 3])
    for now_s, first, second in ((5, 5, 50), (10, 20, 50), (60, 100, 60), (230, 300, 250)):
        next_s = some.next_there_s(ids, now_s)
        assert next_s[:2] == pytest.approx([first, second], abs=1e-5)
        assert next_s[2] == np.inf
        assert all(some.available(ids[i : i + 1], float(next_s[i]))[0] for i in (0, 1))


def test_a_traces_periods_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there may be are read; one more is refused, by its line, with what to do."""
    monkeypatch.setattr(device_trace, "PERIODS_MAX", 3)
    some = written(tmp_path, TRACE, trace="file.csv")
    assert some.trace is not None and len(some.trace.clients) == 3
    with pytest.raises(
        ConfigError, match=r"line 5: a trace has at most 3 periods.*available_share"
    ):
        written(tmp_path, TRACE + "1,40,45\n", trace="file.csv")


def test_a_traces_memory_is_that_of_numbers(tmp_path: Path) -> None:
    """A period costs tens of bytes while a file is read, not hundreds as a row of Python objects."""
    periods = 30_000
    rows = "".join(f"{1 + n % 3},{n * 10},{n * 10 + 5}\n" for n in range(periods))
    (tmp_path / "file.csv").write_text("client,start_s,end_s\n" + rows)
    tracemalloc.start()
    try:
        trace = Trace.read(tmp_path / "file.csv", clients=3)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(trace.clients) == periods
    assert peak_bytes / periods < 120


def test_known_speeds_replace_drawn_ones(tmp_path: Path) -> None:
    """What the file says counts; an empty cell, or a client that it leaves out, is drawn."""
    text = "client,examples_per_s,upload_bytes_per_s\n3,7,\n1,5,11\n"
    some, ids = written(tmp_path, text, speeds="file.csv"), np.array([1, 2, 3])
    drawn = Devices.of(DevicesConfig(), seed=1, clients=3, folder=tmp_path)
    for name, known in (
        ("examples_per_s", [5, None, 7]),
        ("upload_bytes_per_s", [11, None, None]),
        ("download_bytes_per_s", [None, None, None]),
    ):
        others = drawn.speed(name, ids, 0.5).tolist()
        expected = [other if k is None else k for k, other in zip(known, others, strict=True)]
        assert some.speed(name, ids, 0.5).tolist() == expected


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("trace", "client,start_s\n1,0\n", "must name the columns client, start_s, end_s; got"),
        ("trace", "client,start_s,end_s\n", "has no periods"),
        ("trace", "client,start_s,end_s\n1,5,5\n", "line 2: a period must have 0 <= start_s <"),
        (
            "trace",
            "client,start_s,end_s\n1,0,5\n1,4,6\n",
            "periods of client 1 from 0 s and from 4",
        ),
        ("trace", "client,start_s,end_s\n4,0,5\n", "client must be a whole number from 1 to 3"),
        ("trace", "client,start_s,end_s\n1,nan,5\n", "line 2: start_s must be a number, got 'nan'"),
        ("trace", "client,start_s,end_s\n1,0\n", "line 2: end_s must be a number, got None"),
        ("speeds", "client,speed\n1,5\n", "and may be examples_per_s, download_bytes_per_s"),
        ("speeds", "client,examples_per_s\n1,0\n", "line 2: a speed must be > 0, got 0"),
        ("speeds", "client,examples_per_s\n1,1\n1,2\n", "line 3: client 1 has a row before"),
        ("speeds", "client,examples_per_s\n1.5,1\n", "whole number from 1 to 3, got 1.5"),
    ],
)
def test_mistakes_in_files_are_named(tmp_path: Path, key: str, text: str, said: str) -> None:
    """The file, the line, and what would be right."""
    with pytest.raises(ConfigError) as raised:
        written(tmp_path, text, **{key: "file.csv"})
    assert said in str(raised.value) and "file.csv" in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The error names it."""
    with pytest.raises(ConfigError, match=r"gone\.csv cannot be read: No such file"):
        Devices.of(DevicesConfig(trace="gone.csv"), seed=1, clients=3, folder=tmp_path)


def test_a_trace_and_a_share_contradict(tmp_path: Path) -> None:
    """Only one of them can say who is there."""
    with pytest.raises(ConfigError, match="both say when clients are there; remove one"):
        written(tmp_path, TRACE, trace="file.csv", available_share=0.5)
