"""DP-FTRL of whole simulations: turns, budgets, crashes, and the same noise after a resumption."""

from __future__ import annotations

import json
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from meadow.config.rules import privacy as private_config
from meadow.errors import StoreError
from meadow.privacy.dp.plan import PrivacyPlan
from meadow.run.run_folder import RunFolder
from meadow.simulations.run import resume, simulate

TASK = """
import meadow
import torch
from torch import nn


def load(site):
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(20, 6, generator=generator)
    return meadow.ClientData(train=(inputs, (inputs.sum(dim=1) > 0).long()))


task = meadow.Task(
    model=lambda: nn.Linear(6, 2),
    loss=lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"),
    client_data=load,
)
"""
CONFIG = """
[run]
rounds = 8
seed = 3
cohort = 3
[selection]
min_separation = 4
[training]
batch_size = 20
[evaluation]
every = 0
[simulation]
clients = 14
executor = "sequential"
[privacy.differential_privacy]
enabled = true
clip = 0.2
delta = 0.01
sampling = "fixed"
correlation = "{kind}"
{budget}
"""


def written(folder: Path, kind: str, budget: str = "noise_multiplier = 2.0") -> Path:
    """Write an app with this correlation."""
    folder.mkdir()
    (folder / "task.py").write_text(TASK)
    (folder / "meadow.toml").write_text(CONFIG.format(kind=kind, budget=budget))
    return folder


def rows_of(out: Path) -> list[dict[str, Any]]:
    """Return a run's rows."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def failing_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full when a round is committed."""
    commit = RunFolder.commit

    def failing(self: RunFolder, checkpoint: Any, row: Any, table: Any) -> Any:
        if checkpoint.state.round == number:
            raise StoreError("the disk is full")
        return commit(self, checkpoint, row, table)

    monkeypatch.setattr(RunFolder, "commit", failing)


def replay(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the noise of a run's releases be of known seeds."""
    seeds = count(first)
    known = partial(PrivacyPlan, entropy=lambda size: bytes([next(seeds)]) * size)
    monkeypatch.setattr(private_config, "PrivacyPlan", known)


@pytest.mark.parametrize("kind", ["banded", "tree", "none"])
def test_a_run_by_turns_keeps_its_budget(tmp_path: Path, kind: str) -> None:
    """8 rounds of clients that wait for 4 cost two participations, and the claim says so."""
    app = written(tmp_path / "app", kind, "epsilon = 4.0")
    summary = simulate(app, out=tmp_path / "out")
    private = summary["privacy"]
    assert summary["status"] == "finished", summary
    assert 3.99 < private["epsilon"] <= 4.0
    assert private["participations"] == 2 and private["releases"] == 8
    assert "after 4 rounds at the earliest and 2 times at most" in private["claim"]
    spent = [row["privacy"]["epsilon"] for row in rows_of(tmp_path / "out")]
    assert spent[:4] == [spent[0]] * 4 and spent[4:] == [spent[-1]] * 4
    assert spent[0] < spent[-1] <= 4.0


@pytest.mark.parametrize("kind", ["banded", "tree"])
def test_a_crash_between_noise_and_commit_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The round's second noise is another one, and costs everybody once more."""
    out = tmp_path / "out"
    failing_at(6, monkeypatch)
    failed = simulate(written(tmp_path / "app", kind), out=out)
    assert failed["status"] == "failed" and failed["rounds"] == 5
    monkeypatch.undo()
    done = resume(out)
    assert done["status"] == "finished" and done["rounds"] == 8
    assert done["privacy"]["releases"] == 9 and done["privacy"]["participations"] == 3
    assert done["privacy"]["epsilon"] > failed["privacy"]["epsilon"]
    assert "1 of the releases repeated a round" in done["privacy"]["claim"]


@pytest.mark.parametrize("kind", ["banded", "tree"])
def test_a_resumed_run_goes_on_with_the_same_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """With the entropy replayed, an interrupted run ends with the bits of one that was not."""
    models = []
    for name in ("whole", "broken"):
        replay(0, monkeypatch)
        out = tmp_path / name
        if name == "broken":
            failing_at(6, monkeypatch)
        simulate(written(tmp_path / f"{name}-app", kind), out=out)
        monkeypatch.undo()
        if name == "broken":
            replay(5, monkeypatch)
            resume(out)
            monkeypatch.undo()
        models.append(load_file(out / "model.safetensors"))
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])
