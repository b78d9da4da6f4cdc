"""Algorithms of an app's own over gRPC: agents train with the builder in their copy of the app."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from meadow.simulations.run import simulate

from .processes import Federation, federation

pytestmark = pytest.mark.fleet

EXAMPLES = Path(__file__).parents[2] / "examples" / "algorithms"
NAMES = ("fedexp", "moon", "fedsam", "distillation")
SETTINGS = ("run.rounds=2", "simulation.clients=2")
CHOSEN = """
import meadow, fedexp, moon, fedsam, distillation

@meadow.builder
def chosen(*, which: str = "moon") -> meadow.Algorithm:
    module = globals()[which]
    return getattr(module, which)()

@meadow.builder
def other() -> meadow.Algorithm:
    return moon.moon()
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One app with all examples; an argument of its builder chooses among them."""
    folder = tmp_path_factory.mktemp("own") / "app"
    shutil.copytree(EXAMPLES / "moon", folder)
    for name in NAMES:
        shutil.copy(EXAMPLES / name / f"{name}.py", folder)
    (folder / "chosen.py").write_text(CHOSEN)
    text = (folder / "meadow.toml").read_text()
    before, _, rest = text.partition("[strategy]")
    rest = rest[rest.index("[training]") :]
    (folder / "meadow.toml").write_text(f'{before}[strategy]\nname = "chosen:chosen"\n{rest}')
    return folder


@pytest.fixture(scope="module")
def fleet(app: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server and two agents."""
    with federation(tmp_path_factory.mktemp("own-fleet"), app, clients=2) as running:
        yield running


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_the_simulations(
    fleet: Federation, app: Path, tmp_path: Path, name: str
) -> None:
    """To the last byte; the run's arguments go to the agents."""
    run = fleet.submit(*SETTINGS, f"strategy.which={name}")
    summary = fleet.wait_for_end(run)
    assert summary["status"] == "finished", summary
    overrides = [*SETTINGS, f"strategy.which={name}"]
    simulate(app, overrides=overrides, out=tmp_path / "simulated", executor="sequential")
    assert fleet.model(run) == (tmp_path / "simulated" / "model.safetensors").read_bytes()


def test_agents_run_only_what_their_own_copy_names(fleet: Federation) -> None:
    """A run cannot name another function of the app than its meadow.toml does."""
    run = fleet.submit(*SETTINGS, "strategy.name=chosen:other")
    summary = fleet.wait_for_end(run)
    assert summary["status"] == "failed"
    assert "is not that of this copy of the app, 'chosen:chosen'" in summary["cause"]
