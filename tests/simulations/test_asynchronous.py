"""Whole simulations without waiting: on every executor, resumed, and beside synchronous ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from meadow.config.load import make_config
from meadow.errors import ConfigError
from meadow.simulations.run import resume, simulate

from .test_simulate import StoppedHereError, rows_of, sha256_of

TASK = """
import meadow
import torch
from torch import nn

CLASSES, FEATURES = 6, 12
CENTRES = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(5)) * 1.2


def samples(seed, count, classes):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (count,), generator=generator)]
    return CENTRES[labels] + torch.randn(count, FEATURES, generator=generator), labels


def load(site):  # two classes a client
    classes = [site.index % CLASSES, (site.index + 1) % CLASSES]
    return meadow.ClientData(
        train=samples(site.index, 30, classes), test=samples(50 + site.index, 10, classes)
    )


task = meadow.Task(
    model=lambda: nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES)),
    loss=lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"),
    metrics={"accuracy": lambda o, t: (o.argmax(dim=1) == t).float()},
    client_data=load,
    server_data=lambda: samples(999, 600, list(range(CLASSES))),
)
"""
CONFIG = """
[run]
rounds = 12
seed = 3
deadline_s = 6000
[training]
batch_size = 10
learning_rate = 0.05
[simulation]
clients = 12
executor = "sequential"
[simulation.devices]
examples_per_s = 10
examples_per_s_spread = 1
latency_s = 1
"""
FEDBUFF = ("rounds.kind=fedbuff", "rounds.buffer_size=4", "rounds.concurrency=8")
FEDASYNC = ("rounds.kind=fedasync", "rounds.concurrency=0.5", "rounds.staleness=hinge")
KINDS = {"fedbuff": FEDBUFF, "fedasync": FEDASYNC}
EXECUTORS = {
    "fedbuff": ["sequential", "vectorized", "processes"],
    "fedasync": ["sequential", "vectorized"],
}


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Twelve clients of two classes each; a few are ten times as slow as others."""
    folder = tmp_path / "uneven_app"
    folder.mkdir()
    (folder / "task.py").write_text(TASK)
    (folder / "meadow.toml").write_text(CONFIG)
    return folder


def run(app: Path, out: Path, *settings: str, **more: Any) -> list[dict[str, Any]]:
    """Simulate, and return the rows."""
    summary = simulate(app, out=out, overrides=settings, **more)
    assert summary["status"] == "finished", summary["cause"]
    return rows_of(out)


def params_of(folder: Path) -> dict[str, Any]:
    """Return the final params."""
    from meadow.transport.tensors import TensorFile, checksum

    path = folder / "model.safetensors"
    found = checksum(path)
    file = TensorFile.open(path, size_max=found.size_bytes, crc32=found.crc32)
    return {name: tensor.numpy() for name, tensor in file.tensors.items()}


def test_fedbuff_beats_synchronous_rounds_in_virtual_time(app: Path, tmp_path: Path) -> None:
    """With stragglers, it is at an accuracy in half the time: a round waits for the slowest."""
    seconds: dict[str, float] = {}
    kinds = {
        "synchronous": ("run.cohort=8", "run.rounds=7"),
        "fedbuff": (*FEDBUFF, "run.rounds=16"),
    }
    for kind, settings in kinds.items():
        rows = run(app, tmp_path / kind, *settings)
        there = [row["virtual_s"] for row in rows if row["server"]["accuracy"] >= 0.8]
        assert there, f"{kind} ends at {rows[-1]['server']}"
        seconds[kind] = there[0]
    assert seconds["fedbuff"] < 0.5 * seconds["synchronous"], seconds


@pytest.mark.parametrize("kind", KINDS)
def test_executors_agree(app: Path, tmp_path: Path, kind: str) -> None:
    """Who answers when is the same everywhere, and so are the params, within rounding."""
    found = {}
    for executor in EXECUTORS[kind]:
        out = tmp_path / executor
        rows = run(app, out, *KINDS[kind], "run.rounds=6", executor=executor)
        times = [(row["virtual_s"], row["clients"], row["staleness"]) for row in rows]
        found[executor] = times, params_of(out)
    times, params = found["sequential"]
    assert max(staleness["max"] for _, _, staleness in times) > 1
    for other, others in found.values():
        assert other == times
        for name, values in params.items():
            assert abs(others[name] - values).max() < 1e-5


CHANCES = ("simulation.devices.dropout=0.3", "simulation.devices.failure=0.2", "run.deadline_s=40")


@pytest.mark.parametrize(("kind", "last"), [("fedbuff", 3), ("fedasync", 0), ("fedasync", 5)])
def test_an_interrupted_run_is_uninterrupted(
    app: Path, tmp_path: Path, kind: str, last: int
) -> None:
    """Killed within a round and resumed: the same instructions, times, and model to the bit."""
    rounds = {"fedbuff": 8, "fedasync": 30}[kind]
    settings = (*KINDS[kind], *CHANCES, f"run.rounds={rounds}")
    rows = run(app, tmp_path / "whole", *settings)
    assert any(row["failures"] for row in rows)

    def kill(event: str, detail: Mapping[str, Any]) -> None:
        if event == "round_started" and detail["round"] == last + 1:
            raise StoppedHereError

    out = tmp_path / "killed"
    with pytest.raises(StoppedHereError):
        simulate(app, out=out, overrides=settings, on_event=kill)
    assert resume(out)["status"] == "finished"
    assert rows_of(out) == rows
    lines = (out / "clients.jsonl").read_text()
    assert lines == (tmp_path / "whole" / "clients.jsonl").read_text()
    assert sha256_of(out) == sha256_of(tmp_path / "whole")


def test_without_devices_all_are_equally_fast(app: Path, tmp_path: Path) -> None:
    """Then a buffer for everybody gives the synchronous model, to the bit."""
    plain = (app / "meadow.toml").read_text().partition("[simulation.devices]")[0]
    (app / "meadow.toml").write_text(plain)
    run(app, tmp_path / "synchronous", "run.rounds=4")
    run(app, tmp_path / "fedbuff", "rounds.kind=fedbuff", "rounds.buffer_size=12", "run.rounds=4")
    assert sha256_of(tmp_path / "fedbuff") == sha256_of(tmp_path / "synchronous")


def test_a_cap_on_staleness_stops_slow_clients(app: Path, tmp_path: Path) -> None:
    """Nothing older counts, its clients are told so, and are there for newer params."""
    rows = run(app, tmp_path / "out", *FEDBUFF, "rounds.max_staleness=1", "run.rounds=20")
    assert max(row["staleness"]["max"] for row in rows) == 1
    lines = (tmp_path / "out" / "clients.jsonl").read_text().splitlines()
    late = [client for line in lines for client in json.loads(line).get("late", [])]
    assert late and len(set(late)) < 12
    assert rows[-1]["server"]["accuracy"] > rows[0]["server"]["accuracy"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "strategy": ({"strategy": {"name": "scaffold"}}, "carries over params alone"),
    "personal": ({"strategy": {"name": "ditto"}}, "carries over params alone"),
    "robust": ({"robust": {"byzantine": 0}}, "a fast one may be in a round more than once"),
    "selection": ({"selection": {"kind": "examples"}}, "is about cohorts"),
    "rest": ({"selection": {"min_separation": 2}}, "is about cohorts"),
    "limit": ({"selection": {"participations_max": 2}}, "is about cohorts"),
    "compression": ({"compression": {"upload": "int8"}}, "is for messages of cohorts"),
    "adversaries": (
        {"simulation": {"adversaries": {"count": 1}, "clients": 9}},
        "look at a cohort's updates",
    ),
    "secure": (
        {"privacy": {"secure_aggregation": {"enabled": True}}, "run": {"min_clients": 3}},
        "clients that answer together",
    ),
    "privacy": (
        {
            "privacy": {"differential_privacy": {"enabled": True, "noise_multiplier": 1.0}},
            "simulation": {"clients": 20},
        },
        "the fastest clients take part",
    ),
    "cohort": ({"run": {"cohort": 3}}, "rounds.concurrency"),
    "stopping": ({"run": {"early_stopping": {}}}, "measured once, at the end"),
    "fraction": ({"rounds": {"concurrency": 1.5}}, "write 2 for that many"),
    "many": ({"rounds": {"concurrency": 9}, "simulation": {"clients": 5}}, "is more than"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_combine_is_refused(case: str) -> None:
    """When the configuration is read, with a sentence that says why and what would do."""
    values, said = REFUSED[case]
    rounds = {"kind": "fedbuff", **values.get("rounds", {})}
    with pytest.raises(ConfigError, match=said):
        make_config({**values, "rounds": rounds})


def test_keys_of_asynchronous_rounds_need_them() -> None:
    """A key that would mean nothing is refused."""
    with pytest.raises(ConfigError, match=r"rounds\.buffer_size"):
        make_config({"rounds": {"buffer_size": 4}})
