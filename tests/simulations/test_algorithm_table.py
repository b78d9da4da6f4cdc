"""The table of docs/algorithms.md: each yes is a run of two rounds, each no a sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from meadow.apps.folder import App
from meadow.errors import ConfigError
from meadow.server.tools.round_plan import round_costs
from meadow.simulations.run import simulate
from meadow.strategies.algorithms.catalogue import CATALOGUE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "algorithms.md"
APPS = Path(__file__).with_name("apps")
COLUMNS = {
    "in one tensor": ["simulation.executor=vectorized"],
    "secure aggregation": ["privacy.secure_aggregation.enabled=true"],
    "`run.update_norm_max`": ["run.update_norm_max=100.0"],
    "asynchronous": ["rounds.kind=fedbuff"],
}
TASK = """
import meadow, torch
from torch import nn

def load(site):
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(20, 6, generator=generator)
    targets = inputs.argmax(1) % 3
    return meadow.ClientData(train=(inputs, targets), test=(inputs, targets))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.out = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.body(x))))

task = meadow.Task(model=Model, loss=meadow.cross_entropy, client_data=load)
"""
OTHERS = {"newton": "logistic", "xgb_bagging": "trees", "xgb_cyclic": "trees"}


def table() -> dict[str, dict[str, str]]:
    """Return the cells of the page's table, by algorithm and column."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    head = rows[0]
    return {row[0].strip("`"): dict(zip(head, row, strict=True)) for row in rows[2:]}


def app_of(name: str, folder: Path) -> tuple[Path, list[str]]:
    """Make an app that the algorithm can train; returns it, and the settings it needs."""
    folder.mkdir()
    settings = [f"strategy.name={name}", "run.rounds=2", "simulation.clients=3"]
    code = TASK
    if name == "lora":
        pytest.importorskip("peft")
        code = (APPS / "lora.py").read_text()
    elif name in OTHERS or name == "analytics":
        code = (APPS / "other_work.py").read_text()
        settings.append(f"app.task=task:{OTHERS.get(name, 'counted')}")
    if name.startswith("xgb"):
        pytest.importorskip("xgboost")
    if name == "analytics":
        settings += ['strategy.columns=["age=0:100"]', "strategy.rows_min=1"]
    if name == "xgb_cyclic":
        settings += ["run.cohort=1"]
    settings.append(f"run.min_clients={1 if CATALOGUE[name].single else 3}")
    for key, value in ({} if name == "lora" else CATALOGUE[name].example).items():
        settings.append(f"strategy.{key}={_toml(value)}")
    (folder / "task.py").write_text(code)
    (folder / "meadow.toml").write_text("")
    return folder, settings


@pytest.mark.parametrize("name", [name for name in CATALOGUE if not name.startswith("xgb")])
def test_a_plan_knows_what_travels(name: str, tmp_path: Path) -> None:
    """`meadow plan` says the bytes of a round's tensors before it runs, whatever the algorithm sends."""
    folder, settings = app_of(name, tmp_path / "app")
    said = round_costs(App.load(folder, overrides=settings), clients=3)
    simulate(folder, overrides=settings, out=tmp_path / "run", executor="sequential")
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    for row in map(json.loads, rows):
        assert row["clients"] == said.cohort
        down_bytes = said.server_down_bytes + said.cohort * said.evaluated_bytes
        assert (row["bytes_sent"], row["bytes_received"]) == (down_bytes, said.server_up_bytes)


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ",".join(f'"{each}"' for each in value) + "]"
    return str(value)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("name", CATALOGUE)
def test_a_cell_says_what_happens(name: str, column: str, tmp_path: Path) -> None:
    """The page promises nothing that a run refuses, and refuses nothing that runs."""
    cell = table()[name][column]
    assert cell in ("yes", "no")
    app, settings = app_of(name, tmp_path / "app")
    asked = [*settings, *COLUMNS[column]]
    if column == "asynchronous" and not CATALOGUE[name].single:
        asked = [each for each in asked if not each.startswith(("run.min_clients", "run.cohort"))]
    events: list[str] = []
    refused = ""
    try:
        summary = simulate(
            app,
            overrides=asked,
            out=tmp_path / "run",
            on_event=lambda kind, detail: events.append(f"{kind}: {detail}"),
        )
        assert summary["status"] == "finished", summary["cause"]
    except ConfigError as error:
        refused = str(error)
    told = [event for event in events if event.startswith("not_vectorized")]
    if cell == "yes":
        assert not refused and not told
    else:
        assert re.search(r"\w+ \w+ \w+", refused or " ".join(told))
