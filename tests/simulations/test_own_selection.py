"""Cohorts that a function of the app chooses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import meadow
from meadow.errors import AppError, ConfigError, RunError

TASK = """
import meadow
import torch

def load(site):
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(20, 4, generator=generator)
    return meadow.ClientData(train=(inputs, (inputs.sum(1) > 0).long()))

task = meadow.Task(model=lambda: torch.nn.Linear(4, 2), loss=meadow.cross_entropy, client_data=load)
"""
CHOOSER = """
import numpy as np

def largest_loss(clients, known, *, size, round_number, generator):
    unknown_first = np.where(known.round > 0, np.nan_to_num(known.loss), np.inf)
    return clients[np.argsort(-unknown_first, kind="stable")[:size]]

def odd(clients, known, *, size, round_number, generator):
    return clients[clients % 2 == 1][:size]

def none(clients, known, *, size, round_number, generator):
    return []

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An app with some choosers."""
    made = tmp_path / "app"
    made.mkdir()
    (made / "task.py").write_text(TASK)
    (made / "chooser.py").write_text(CHOOSER)
    (made / "meadow.toml").write_text('[run]\nrounds = 4\n[selection]\nkind = "chooser:odd"\n')
    return made


def clients_of(run: meadow.Run) -> list[list[int]]:
    lines = (run.folder / "clients.jsonl").read_text().splitlines()
    found: dict[int, list[int]] = {}
    for row in map(json.loads, lines):
        found[row["round"]] = sorted(row["clients"])
    return [found[number] for number in sorted(found)]


def test_an_app_chooses_its_cohorts(folder: Path, tmp_path: Path) -> None:
    """By a function that meadow.toml names; the same ones on every executor."""
    cohorts = []
    for executor in ("sequential", "vectorized"):
        run = meadow.simulate(
            folder, clients=8, cohort=3, executor=executor, out=tmp_path / executor, progress=False
        )
        cohorts.append(clients_of(run))
    assert cohorts == [[[1, 3, 5]] * 4] * 2
    assert 'kind = "chooser:odd"' in (run.folder / "meadow.toml").read_text()


def test_it_goes_by_what_clients_reported(folder: Path, tmp_path: Path) -> None:
    """Whoever never trained comes first, then the largest losses of all."""
    run = meadow.simulate(
        folder,
        selection={"kind": "chooser:largest_loss"},
        clients=6,
        cohort=3,
        out=tmp_path / "run",
        progress=False,
    )
    cohorts = clients_of(run)
    assert cohorts[:2] == [[1, 2, 3], [4, 5, 6]]
    rows = [json.loads(line) for line in (run.folder / "clients.jsonl").read_text().splitlines()]
    last = {}
    for row in rows[:2]:
        last |= dict(zip(row["clients"], row["train"]["loss"], strict=True))
    assert cohorts[2] == sorted(sorted(last, key=lambda client: -last[client])[:3])


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("chooser:none", RunError, "return 3 different ones of `clients`"),
        ("chooser:number", AppError, "is a int; name a function that chooses a cohort"),
        ("chooser:gone", AppError, "chooser.py has no 'gone'"),
        ("nowhere:choose", AppError, "importing 'nowhere' failed"),
    ],
)
def test_mistakes_are_named(
    folder: Path, tmp_path: Path, kind: str, error: type[Exception], says: str
) -> None:
    """Before there is a folder, where that is possible."""
    with pytest.raises(error, match=says):
        meadow.simulate(
            folder,
            selection={"kind": kind},
            clients=8,
            cohort=3,
            out=tmp_path / "run",
            progress=False,
        )
    assert (tmp_path / "run").exists() == (error is RunError)


@pytest.mark.parametrize(
    "privacy",
    [
        {"differential_privacy": {"enabled": True, "epsilon": 5.0}},
        {"secure_aggregation": {"enabled": True}},
    ],
)
def test_private_runs_draw_without_a_look_at_clients(folder: Path, privacy: object) -> None:
    """What an app's function goes by, nobody can account for."""
    with pytest.raises(ConfigError, match=r"selection\.kind"):
        meadow.simulate(
            folder,
            clients=8,
            cohort=4,
            privacy=privacy,  # type: ignore[arg-type]
            run={"min_clients": 3},
            progress=False,
        )


def test_under_flower_alone_it_is_refused(folder: Path) -> None:
    """A ServerApp has no app folder to load it from."""
    from meadow.run.app import run_rounds

    config = meadow.make_config({"selection": {"kind": "chooser:odd"}})
    with pytest.raises(ConfigError, match="is a function of an app folder"):
        run_rounds(None, config, None)  # type: ignore[arg-type]
