"""Differential privacy of whole simulations: every executor clips, one server adds noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from meadow.errors import StoreError
from meadow.run.run_folder import RunFolder
from meadow.simulations.run import resume, simulate

TASK = """
import meadow
import torch
from torch import nn

DEPTH = "{depth}"


def samples(seed, count):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=generator)
    return inputs, (inputs.sum(dim=1) > 0).long()


def load(site):
    count = 5 + site.index % 20
    inputs, targets = samples(site.index, count)
    return meadow.ClientData(train=(inputs * (1 + site.index), targets), test=samples(50, 10))


def model():
    layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    return layers if DEPTH == "linear" else nn.Sequential(nn.LayerNorm(6), layers)


task = meadow.Task(
    model=model,
    loss=lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"),
    metrics={{"accuracy": lambda o, t: (o.argmax(dim=1) == t).float()}},
    client_data=load,
    server_data=lambda: samples(99, 40),
)
"""
CONFIG = """
[run]
rounds = {rounds}
seed = 3
cohort = 12
[training]
batch_size = 10
learning_rate = 0.3
[simulation]
clients = 16
[privacy.differential_privacy]
enabled = true
clip = 0.2
delta = 0.01
"""
SILENT = 'sampling = "fixed"\nnoise_multiplier = 1e-6\n'


def written(folder: Path, more: str, *, rounds: int = 2, depth: str = "linear") -> Path:
    """Write an app with this section of privacy."""
    folder.mkdir()
    (folder / "task.py").write_text(TASK.format(depth=depth))
    (folder / "meadow.toml").write_text(CONFIG.format(rounds=rounds) + more)
    return folder


def rows_of(out: Path) -> list[dict[str, Any]]:
    """Return a run's rows."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("depth", ["linear", "any"])
@pytest.mark.parametrize("clipping", ["fixed", "per_layer", "adaptive"])
def test_executors_clip_alike(tmp_path: Path, clipping: str, depth: str) -> None:
    """Clients trained one by one and in one tensor are clipped to the same update."""
    more = f'{SILENT}clipping = "{clipping}"\n'
    if clipping == "adaptive":
        more += "clip_learning_rate = 2.0\ncount_noise = 0.0001\n"
    app = written(tmp_path / "app", more, depth=depth)
    models, told = [], []
    for executor in ("sequential", "vectorized"):
        out = tmp_path / executor
        simulate(app, out=out, executor=executor, on_event=lambda kind, detail: told.append(kind))
        models.append(load_file(out / "model.safetensors"))
    assert "round_committed" in told and "not_vectorized" not in told
    for name, values in models[0].items():
        assert np.abs(values - models[1][name]).max() < 2e-4


def test_the_change_of_a_round_is_bounded(tmp_path: Path) -> None:
    """With hardly any noise, 12 clients of a cohort of 12 move the params by at most the clip."""
    app = written(tmp_path / "app", SILENT, rounds=1)
    simulate(app, out=tmp_path / "free", overrides=["privacy.differential_privacy.clip_norm=1000"])
    simulate(
        app, out=tmp_path / "bound", overrides=["privacy.differential_privacy.clip_norm=0.001"]
    )
    from meadow.apps.folder import App
    from meadow.flower.messages import arrays_to_params
    from meadow.run.app import initial_arrays

    before = arrays_to_params(initial_arrays(App.load(app).load_task(), 3))
    norms = {}
    for name in ("free", "bound"):
        after = load_file(tmp_path / name / "model.safetensors")
        norms[name] = sum(float(((after[k] - before[k]) ** 2).sum()) for k in before) ** 0.5
    assert norms["free"] > 0.1
    assert 0.0001 < norms["bound"] <= 0.001 * 1.01


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_nothing_but_params_is_kept_of_clients(tmp_path: Path, executor: str) -> None:
    """No metric, no count of examples, no evaluation on clients; the server's own is there."""
    app = written(tmp_path / "app", SILENT)
    out = tmp_path / "out"
    summary = simulate(app, out=out, executor=executor)
    assert not (out / "clients.jsonl").exists()
    for row in rows_of(out):
        assert row["train"] == {} and row["evaluate"] == {}
        assert set(row["server"]) == {"loss", "accuracy"}
    assert summary["best"] is not None


def test_a_run_keeps_its_budget_and_says_so(tmp_path: Path) -> None:
    """epsilon grows round by round up to the budget; the claim is in the summary, in words."""
    app = written(tmp_path / "app", "epsilon = 4.0\n", rounds=4)
    said: dict[str, Any] = {}
    summary = simulate(
        app, out=tmp_path / "out", executor="vectorized", on_event=lambda k, d: said.update({k: d})
    )
    assert said["privacy_budget"] == {"epsilon_max": 4.0, "delta": 0.01}
    spent = [row["privacy"]["epsilon"] for row in rows_of(tmp_path / "out")]
    assert spent == sorted(spent) and spent[0] < spent[-1] <= 4.0
    assert summary["privacy"]["epsilon"] == pytest.approx(spent[-1])
    assert 3.9 < summary["privacy"]["epsilon"] <= 4.0
    assert "Unit: a client with all of its data" in summary["privacy"]["claim"]
    assert summary["privacy"]["sampling_probability"] == 12 / 16


def test_noise_is_no_part_of_the_seed(tmp_path: Path) -> None:
    """Two runs of the same seed differ: else whoever knows the seed could subtract the noise."""
    app = written(tmp_path / "app", 'sampling = "fixed"\nnoise_multiplier = 1.0\n', rounds=1)
    models = []
    for name in ("one", "two"):
        simulate(app, out=tmp_path / name, executor="sequential")
        models.append(load_file(tmp_path / name / "model.safetensors"))
    assert all(not np.array_equal(models[0][name], models[1][name]) for name in models[0])


def test_a_crash_between_noise_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round runs again after it, with other noise, and its two releases are both counted."""
    app = written(tmp_path / "app", 'sampling = "fixed"\nnoise_multiplier = 5.0\n', rounds=3)
    out, commit = tmp_path / "out", RunFolder.commit

    def failing(self: RunFolder, checkpoint: Any, row: Any, table: Any) -> Any:
        if checkpoint.state.round == 2:
            raise StoreError("the disk is full")
        return commit(self, checkpoint, row, table)

    monkeypatch.setattr(RunFolder, "commit", failing)
    failed = simulate(app, out=out, executor="sequential")
    assert failed["status"] == "failed" and failed["rounds"] == 1
    assert failed["privacy"]["releases"] == 2
    monkeypatch.undo()
    done = resume(out)
    assert done["status"] == "finished" and done["rounds"] == 3
    assert done["privacy"]["releases"] == 4
    assert rows_of(out)[-1]["privacy"]["releases"] == 4
    assert done["privacy"]["epsilon"] > failed["privacy"]["epsilon"]


def test_a_round_counts_whoever_was_drawn_by_coins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody, or fewer than min_clients: noise is released, and no coins are tossed again."""
    from meadow.privacy.dp import plan as plans

    draws = iter([[], [3], [2, 5], [1], []])
    drawn: list[list[int]] = []

    def draw(*given: object) -> list[int]:
        drawn.append(next(draws))
        return drawn[-1]

    monkeypatch.setattr(plans, "draw_poisson", draw)
    app = written(tmp_path / "app", "noise_multiplier = 1.0\n", rounds=5)
    done = simulate(app, out=tmp_path / "out", overrides=["run.min_clients=4"])
    assert done["status"] == "finished", done["cause"]
    assert [row["clients"] for row in rows_of(tmp_path / "out")] == [len(each) for each in drawn]
    assert len(drawn) == 5 and done["privacy"]["releases"] == 5
