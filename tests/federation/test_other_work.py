"""Clients that do other work than train a whole model, or have norms of their own, over gRPC."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from meadow.simulations.run import simulate

from .processes import Federation, federation

pytestmark = pytest.mark.fleet

CODE = Path(__file__).parents[1] / "simulations" / "apps"
CLIENTS = 3
SETTINGS = f"""
[app]
task = "{{task}}"
[run]
rounds = 2
min_clients = {CLIENTS}
[simulation]
clients = {CLIENTS}
[training]
batch_size = 30
"""
APPS = {
    "newton": ("other_work", "task:logistic", ("strategy.name=newton", "strategy.ridge=0.1")),
    "fedbn": ("other_work", "task:normed", ("strategy.name=fedbn",)),
    "analytics": (
        "other_work",
        "task:counted",
        ("strategy.name=analytics", 'strategy.columns=["age=0:100","lab=-4:4"]'),
    ),
    "lora": ("lora", "task:task", ("strategy.name=lora",)),
    "xgb_cyclic": (
        "other_work",
        "task:trees",
        ("strategy.name=xgb_cyclic", "strategy.objective=binary:logistic", "run.cohort=1",
         "run.min_clients=1"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server, and three agents that have all these apps."""
    folder = tmp_path_factory.mktemp("works")
    for name, (code, task, _) in APPS.items():
        app = folder / "apps" / name
        app.mkdir(parents=True)
        shutil.copy(CODE / f"{code}.py", app / "task.py")
        (app / "meadow.toml").write_text(SETTINGS.format(task=task))
    with federation(folder, folder / "apps" / "newton", clients=CLIENTS) as running:
        others = [f'{name} = "{folder / "apps" / name}"' for name in APPS if name != "newton"]
        for index in range(CLIENTS):
            file = running.client_dir(index) / "client.toml"
            text = file.read_text().replace("[apps]\n", "\n".join(["[apps]", *others, ""]))
            file.write_text(text)
        yield running


@pytest.mark.parametrize("name", APPS)
def test_the_model_is_the_simulations(fleet: Federation, tmp_path: Path, name: str) -> None:
    """What a real federation ends with is, to the last bit, what its simulation does."""
    if name in ("lora", "xgb_cyclic"):
        pytest.importorskip("peft" if name == "lora" else "xgboost")
    fleet.app = fleet.folder / "apps" / name
    run = fleet.submit(*APPS[name][2])
    assert fleet.wait_for_end(run)["status"] == "finished", fleet.rounds(run)
    simulate(fleet.app, overrides=APPS[name][2], out=tmp_path / "run", executor="sequential")
    assert fleet.model(run) == (tmp_path / "run" / "model.safetensors").read_bytes()
