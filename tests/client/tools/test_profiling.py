"""Where a round's time goes, and how large a batch fits: measured on a small app."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from meadow.apps.folder import content_hash
from meadow.cli.client import app as commands
from meadow.client.owner.owner import Owner
from meadow.client.tools.batch_probe import Trial, fit_of, largest_batch, measure
from meadow.client.tools.doctor import tried_out
from meadow.client.tools.profiling import RoundProfile, advice_on, profile_round
from meadow.client.tools.workbench import TryOut
from meadow.errors import AppError
from meadow.training.device_meter import DeviceMeter
from meadow.training.step_timer import EnoughError, StopWatch

SCANS = Path(__file__).parents[2] / "training" / "parallel" / "scans"
CLIENT = """
[apps]
scans = "scans"
[data]
index = 0
count = 2
[device]
device = "cpu"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A client's folder with one app."""
    made = tmp_path_factory.mktemp("client")
    shutil.copytree(SCANS, made / "scans")
    with (made / "scans" / "meadow.toml").open("a") as file:
        file.write("[training]\nbatch_size = 4\nepochs = 2\n")
    (made / "client.toml").write_text(CLIENT)
    return made


def test_a_round_is_profiled(folder: Path) -> None:
    """Every phase takes time, the phases and the rest are the whole, and the trace names them."""
    trace = folder / "trace.json"
    found = profile_round(TryOut.open(folder, "scans"), trace)
    assert found.steps == 2 * 14 - 3  # epochs of 53 examples; the first steps are let go by
    alone = {phase: s for phase, s in found.seconds.items() if phase != "communication"}
    assert all(alone[phase] > 0 for phase in ("data", "forward", "backward", "optimizer"))
    assert sum(alone.values()) == pytest.approx(found.total_s)
    assert found.seconds["communication"] == 0
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"meadow:data", "meadow:forward", "meadow:backward", "meadow:optimizer"} <= names


def test_the_command_prints_a_profile(folder: Path) -> None:
    """`meadow client profile` says the same, and writes the trace into the client's folder."""
    arguments = ["profile", "scans", "--dir", str(folder), "--format", "json"]
    done = CliRunner().invoke(commands, arguments, catch_exceptions=False)
    found = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == 0 and found["steps"] == 25
    assert Path(found["trace"]).parent == folder and Path(found["trace"]).is_file()


def test_the_doctor_has_a_round_tried_out(folder: Path) -> None:
    """Another process measures it; its figures are in one sentence."""
    owner, log = Owner(folder, content_hash), folder / "doctor.log"
    found = asyncio.run(tried_out(owner, "scans", log))
    assert found.ok, found.text
    assert re.search(
        r"a round takes about .* with 4 examples at once; about \d+ would fit", found.text
    )


def test_phases_do_not_count_twice() -> None:
    """What is within another phase is not in that one's time, and enough is enough."""
    watch = StopWatch("cpu", warm_steps=0, steps_max=1)
    with watch.of("backward"), watch.of("forward"):
        torch.ones(200, 200).matmul(torch.ones(200, 200))
    with watch.of("optimizer"):
        pass
    assert watch.seconds["backward"] + watch.seconds["forward"] <= watch.total_s
    with pytest.raises(EnoughError, match="1 steps were watched"), watch.of("data"):
        pass


def profiled(precision: str = "fp32", device: str = "cpu", **seconds: float) -> RoundProfile:
    return RoundProfile(
        device=device,
        steps=1,
        seconds=seconds,
        total_s=1.0,
        precision=precision,
        loads_items=True,
        loader_processes=2,
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (profiled(forward=0.5, backward=0.5), []),
        (profiled(data=0.3, optimizer=0.4), ["optimizer takes 40%", "loader_processes = 4"]),
        (profiled(communication=0.5, data=0.1), ["fewer device.processes"]),
        (profiled(device="cuda:0", forward=0.9), ['device.precision = "bf16"']),
        (profiled(device="cuda:0", precision="bf16", forward=0.9), []),
    ],
)
def test_advice_is_about_what_takes_long(found: RoundProfile, words: list[str]) -> None:
    """Each sentence is for a large part of the time, the largest first."""
    said = list(advice_on(found))
    assert len(said) == len(words)
    assert all(word in sentence for word, sentence in zip(words, said, strict=True))


def test_an_app_that_is_not_there_is_refused(folder: Path) -> None:
    """The sentence says which there are."""
    with pytest.raises(AppError, match=r"'eyes' is not installed in .*; there are: scans"):
        TryOut.open(folder, "eyes")


@pytest.mark.parametrize(
    ("memory_ends", "tried", "largest"),
    [
        (10**9, [8, 16, 32, 64], 90),  # 100 bytes, and 10 for an example: 90 fill a room of 1000
        (40, [8, 16, 32, 64], 32),  # it ran out with 64
    ],
)
def test_batches_grow_as_long_as_they_fit(memory_ends: int, tried: list[int], largest: int) -> None:
    """No trial asks for more memory than there is, as far as the trials before it tell."""

    def steps(batch: int) -> Trial:
        if batch > memory_ends:
            raise MemoryError
        return Trial(batch=batch, memory_bytes=100 + 10 * batch, step_s=0.1)

    trials = list(measure(steps, 8, room=1000))
    assert [trial.batch for trial in trials] == tried
    assert largest_batch(trials, 1000) == largest


def test_small_batches_that_need_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier work left free hides what a batch needs: larger ones are tried all the same."""
    monkeypatch.setattr("meadow.client.tools.batch_probe.BATCH_MAX", 64)
    trials = list(
        measure(lambda batch: Trial(batch=batch, memory_bytes=500, step_s=0.1), 8, room=1000)
    )
    assert [trial.batch for trial in trials] == [8, 16, 32, 64]
    assert largest_batch(trials, 1000) == 64


def test_the_need_of_a_round_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory, time and batches are those of this process and its data."""
    monkeypatch.setattr("meadow.client.tools.batch_probe.BATCH_MAX", 64)
    found = fit_of(TryOut.open(folder, "scans"))
    assert found.batch == 4 and found.batch_tried == 64 <= found.batch_max
    assert 50 < found.memory_mb < found.room_mb
    assert found.round_s > 0 and found.examples_a_second > 0


def test_a_meter_tells_what_the_owner_allows() -> None:
    """Examples a second and peak memory always, utilisation where the device says it."""
    meter = DeviceMeter("cpu")
    with meter.measuring():
        held = torch.ones(20_000_000)
    found = meter.metrics(len(held))
    assert set(found) == {"samples-per-s", "peak-memory-mb"}
    assert found["peak-memory-mb"] > 80 and found["samples-per-s"] > 0
    levels = iter([40.0, 60.0])
    asked = DeviceMeter("cpu", utilisation=lambda: next(levels, 50.0))
    with asked.measuring():
        asked._sample()
    assert asked.metrics(1)["utilisation"] == 50.0
