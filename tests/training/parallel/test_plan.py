"""What the owner says and what is there decide who trains."""

from __future__ import annotations

import re
from typing import Any

import pytest

from meadow.config.sections.device import DeviceConfig
from meadow.errors import DataError
from meadow.machine.accelerators import accelerators
from meadow.training.parallel.choice import choose
from meadow.training.parallel.parallelism import rows_of
from meadow.training.parallel.plan import ParallelPlan


def plan(gpus_there: int, **device: Any) -> ParallelPlan:
    return ParallelPlan.of(
        DeviceConfig(**device),
        model_bytes=10**9,
        there=[f"cuda:{number}" for number in range(gpus_there)],
        free=lambda gpu: 5 * 10**9 if gpu == "cuda:3" else 80 * 10**9,
    )


@pytest.mark.parametrize(
    ("there", "device", "kind", "devices"),
    [
        (0, {}, "none", ("cpu",)),
        (2, {}, "none", ("cuda:0",)),
        (2, {"gpus": 1}, "none", ("cuda:1",)),
        (2, {"gpus": "cpu"}, "none", ("cpu",)),
        (4, {"gpus": "all", "parallel": "ddp"}, "ddp", ("cuda:0", "cuda:1", "cuda:2", "cuda:3")),
        (4, {"gpus": (1, 3), "parallel": "fsdp"}, "fsdp", ("cuda:1", "cuda:3")),
        (4, {"parallel": "ddp", "processes": 2}, "ddp", ("cuda:0", "cuda:1")),
        (0, {"parallel": "ddp", "processes": 3}, "ddp", ("cpu", "cpu", "cpu")),
        (1, {"parallel": "auto"}, "none", ("cuda:0",)),
        (2, {"parallel": "auto"}, "ddp", ("cuda:0", "cuda:1")),
        (0, {"parallel": "auto"}, "none", ("cpu",)),
        (0, {"parallel": "auto", "processes": 2}, "ddp", ("cpu", "cpu")),
        (4, {"gpus": (0, 3), "parallel": "auto"}, "fsdp", ("cuda:0", "cuda:3")),
        (2, {"parallel": "data_parallel"}, "data_parallel", ("cuda:0", "cuda:1")),
        (0, {"parallel": "hybrid", "processes": 4}, "fsdp", ("cpu",) * 4),
        (
            0,
            {"parallel": "hybrid", "copy_parallel": "pipeline", "processes": 4},
            "pipeline",
            ("cpu",) * 4,
        ),
    ],
)
def test_who_trains(there: int, device: dict[str, Any], kind: str, devices: Any) -> None:
    """Each combination of words and GPUs has one meaning, and "auto" a reason."""
    made = plan(there, **device)
    assert (made.kind, made.devices) == (kind, devices)
    assert bool(made.reason) == (device.get("parallel") == "auto")
    assert ParallelPlan.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("model_gb", "form", "copies", "why"),
    [
        (1, "ddp", 1, "each of 8 GPUs has 10.0 GB free"),
        (3, "fsdp", 4, "12.0 GB .* more than 70% of the 10.0 GB free; it fits 2 GPUs"),
        (6, "fsdp", 2, "it fits 4 GPUs, so each copy has as many"),
        (9, "fsdp", 1, "more than 70% of the 10.0 GB free$"),
    ],
)
def test_a_copy_has_no_more_gpus_than_it_needs(
    model_gb: int, form: str, copies: int, why: str
) -> None:
    """Of eight GPUs with 10 GB, as few hold one copy as can; the reason is in the sentence."""
    gpus = [f"cuda:{number}" for number in range(8)]
    made = choose(gpus, model_gb * 10**9, lambda gpu: 10 * 10**9)
    assert made[:2] == (form, copies)
    assert re.search(why, made[2])


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ({"gpus": (0, 5)}, "names GPU 5, and torch sees 2 GPUs"),
        ({"parallel": "ddp", "processes": 3}, "processes = 3, and there are 2 GPUs to use"),
        ({"gpus": "cpu", "parallel": "ddp"}, "on the CPU needs device.processes"),
        ({"parallel": "hybrid"}, r"copies = 2 copies of the model need a multiple of 2 processes"),
        ({"gpus": "cpu", "parallel": "data_parallel"}, "one process for several GPUs, and there"),
    ],
)
def test_what_is_not_there_is_refused(device: dict[str, Any], sentence: str) -> None:
    """Each mistake is a sentence with the next step."""
    with pytest.raises(DataError, match=sentence):
        plan(2, **device)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_rows_are_divided(count: int, ranks: int) -> None:
    """Every row is one rank's, and ranks differ by one row at most."""
    parts = [rows_of(count, rank, ranks) for rank in range(ranks)]
    assert [row for part in parts for row in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.skipif(len(accelerators()) < 2, reason="needs two accelerators")
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "tensor", "data_parallel", "pipeline"])
def test_two_gpus_make_one_update(bench: Any, kind: str) -> None:
    """As on the CPU, with NCCL; looser, as convolutions on GPUs round in other ways."""
    from .conftest import distance

    bench.say("no-norm", "")  # data_parallel has none
    if kind == "pipeline":
        bench.say("sequence", "")
    settings = {"batch_size": 8, "learning_rate": 0.1, "seed": 4}
    expected, *_ = bench.train(bench.training(), **settings)
    training = bench.training(device="auto", gpus=(0, 1), parallel=kind)
    try:
        ours, *_ = bench.train(training, **settings)
    finally:
        training.close()
    assert distance({name: value.cpu() for name, value in ours.items()}, expected) < 1e-3
