"""Algorithms that installed packages register by entry points."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import meadow
from meadow.cli.main import app
from meadow.errors import ConfigError

CODE = """
import meadow

@meadow.builder
def slow(*, rate: float = 0.5):
    def apply(state, aggregate):
        mean = aggregate.mean
        return state.moved({n: old + rate * (mean[n] - old) for n, old in state.params.items()})
    return meadow.averaging("slow", apply=apply)
"""
TASK = """
import meadow
import torch

def load(site):
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(20, 4, generator=generator)
    return meadow.ClientData(train=(inputs, (inputs.sum(1) > 0).long()))

task = meadow.Task(model=lambda: torch.nn.Linear(4, 2), loss=meadow.cross_entropy, client_data=load)
"""


def install(folder: Path, package: str, name: str, reference: str) -> None:
    """Write what an installer leaves of a package: its metadata with an entry point."""
    info = folder / f"{package}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[meadow.strategies]\n{name} = {reference}\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that packages are installed in."""
    folder = tmp_path / "packages"
    install(folder, "slow-averaging", "slow", "slow_averaging:slow")
    (folder / "slow_averaging.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def app_folder(tmp_path: Path) -> Path:
    """An app that names it in its meadow.toml."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "task.py").write_text(TASK)
    (folder / "meadow.toml").write_text('[strategy]\nname = "slow"\nrate = 0.25\n')
    return folder


def test_it_is_used_as_meadows_own_are(packages: Path, app_folder: Path, tmp_path: Path) -> None:
    """By its name in meadow.toml, on the command line and in Python: the same bits as by its module."""
    found = []
    for place, strategy in enumerate(
        (None, {"name": "slow", "rate": 0.25}, {"name": "slow_averaging:slow", "rate": 0.25})
    ):
        run = meadow.simulate(
            app_folder,
            strategy=strategy,
            clients=3,
            rounds=2,
            executor="sequential",
            out=tmp_path / f"run-{place}",
            progress=False,
        )
        written = tomllib.loads((run.folder / "meadow.toml").read_text())["strategy"]
        assert written == {"name": "slow_averaging:slow", "rate": 0.25}
        found.append({name: values.tobytes() for name, values in run.params().items()})
    assert found[0] == found[1] == found[2]


def test_a_name_that_nobody_registers(packages: Path) -> None:
    """The refusal lists what there is, and knows the installed names."""
    with pytest.raises(ConfigError, match=r'strategy.name must be "fedavg".*did you mean "slow"'):
        meadow.make_config({"strategy": {"name": "slov"}})


def test_a_name_that_two_packages_register(packages: Path) -> None:
    """Nobody chooses between them but the user."""
    install(packages, "other", "slow", "other:slow")
    with pytest.raises(
        ConfigError, match=r'"slow" is registered by|registered by other 1.2 and by'
    ):
        meadow.make_config({"strategy": {"name": "slow"}})
    assert meadow.make_config({"strategy": {"name": "other:slow"}}).strategy.name == "other:slow"


def test_meadows_own_names_are_not_taken_over(packages: Path) -> None:
    """A package that registers "fedavg" changes nothing."""
    install(packages, "other", "fedavg", "other:fedavg")
    assert meadow.make_config({"strategy": {"name": "fedavg"}}).strategy.name == "fedavg"


def test_they_are_listed(packages: Path) -> None:
    """`meadow plugins` names the setting, the builder and the package; nothing is imported."""
    install(packages, "broken", "broken", "no_such_module:builder")
    done = CliRunner().invoke(app, ["plugins", "--format", "json"])
    assert done.exit_code == 0, done.output
    rows = {row["name"]: row for row in json.loads(done.output)}
    assert rows["slow"] == {
        "setting": "strategy.name",
        "name": "slow",
        "stands_for": "slow_averaging:slow",
        "package": "slow-averaging 1.2",
    }
    assert (
        rows["broken"]["package"] == "broken 1.2"
        and rows["scaffold"]["stands_for"] == "meadow.scaffold"
    )
