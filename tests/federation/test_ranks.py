"""A real federation one of whose clients trains with two ranks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from meadow.transport.tensors import TensorFile

from .processes import Federation, federation, meadow, wait_until

SCANS = Path(__file__).parents[1] / "training" / "parallel" / "scans"
pytestmark = pytest.mark.fleet

SETTINGS = (
    "run.rounds=3",
    "run.min_clients=3",
    "simulation.clients=3",
    "training.epochs=2",
    "training.batch_size=8",
    "training.learning_rate=0.05",
)
STEPS = 14  # a round
DEVICE = """
[device]
device = "cpu"
parallel = "ddp"
processes = 2
rank_timeout_s = 60
save_steps = 3
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server, a client of two ranks, and two plain ones."""
    folder = tmp_path_factory.mktemp("ranks")
    shutil.copytree(SCANS, folder / "scans")
    with federation(folder, folder / "scans", clients=3) as running:
        file = running.client_dir(0) / "client.toml"
        told = file.read_text().replace("[policy]\n", "[policy]\nreport_device = true\n")
        file.write_text(told.replace("\n[device]\n", DEVICE))
        yield running


def model(file: Path) -> dict[str, torch.Tensor]:
    """Read a run's model."""
    tensors = TensorFile.open(file, size_max=1 << 30).tensors
    return {name: torch.tensor(tensor.numpy()) for name, tensor in tensors.items()}


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest relative difference of two models' tensors."""
    return max(
        float((one[name] - other[name]).double().norm() / other[name].double().norm().clamp(1e-12))
        for name in one
    )


def passes(fleet: Federation) -> int:
    """Return how many passes the second rank has made since this was asked last."""
    file = fleet.folder / "passes-1"
    count = len(file.read_text().split()) if file.exists() else 0
    file.unlink(missing_ok=True)
    return count


def finished(fleet: Federation, run: int) -> dict[str, torch.Tensor]:
    """Wait for the end of a run; returns its model."""
    assert fleet.wait_for_end(run)["status"] == "finished"
    rows = fleet.rounds(run)
    assert [(row["clients"], row["failures"]) for row in rows] == [(3, 0)] * 3, rows
    return model(fleet.run_dir(run) / "model.safetensors")


@pytest.fixture(scope="module")
def undisturbed(fleet: Federation) -> dict[str, torch.Tensor]:
    """The model of a run that nothing happened to."""
    run = fleet.submit(*SETTINGS)
    made = finished(fleet, run)
    for row in fleet.rounds(run):  # one client's owner lets it tell
        assert row["train"]["samples-per-s"] > 0 and row["train"]["peak-memory-mb"] > 50
    assert passes(fleet) == 3 * STEPS, "there was no second rank"
    return made


def test_the_model_is_that_of_plain_clients(
    fleet: Federation, undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """The strategy does not notice who trains with how many processes."""
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    arguments = ("--executor", "sequential", "--out", str(tmp_path), *options)
    meadow("simulate", str(fleet.app), *arguments)
    assert distance(undisturbed, model(tmp_path / "model.safetensors")) < 1e-5


@pytest.mark.parametrize("victim", ["kill-1", "leader-0", "group-0", "agent-0"])
def test_a_death_costs_a_few_steps(
    fleet: Federation, undisturbed: dict[str, torch.Tensor], victim: str
) -> None:
    """kill -9 of a rank, of the training process, of all ranks at once or of the agent in the middle
    of an epoch: the round goes on from its last save, and the model has the same bits."""
    (fleet.folder / victim).write_text(str(STEPS + 6))
    run = fleet.submit(*SETTINGS)
    wait_until(lambda: not (fleet.folder / victim).exists(), "the death")
    if victim == "agent-0":
        assert fleet.clients[0].popen is not None
        fleet.clients[0].popen.wait()
        fleet.clients[0].start()
    assert distance(finished(fleet, run), undisturbed) == 0
    assert 3 * STEPS <= passes(fleet) <= 3 * STEPS + 4
    assert len([*(fleet.client_dir(0) / "ranks").iterdir()]) == 1, "a dead group left its place"


def test_the_server_may_see_sums_alone(
    fleet: Federation, undisturbed: dict[str, torch.Tensor]
) -> None:
    """Secure aggregation takes the update of two ranks as it takes any other."""
    run = fleet.submit(*SETTINGS, "privacy.secure_aggregation.enabled=true")
    assert distance(finished(fleet, run), undisturbed) < 1e-2  # updates are rounded for the sum


def test_one_client_of_each_form(tmp_path: Path) -> None:
    """Clients whose ranks hold parts of the params or of the layers, and one with two copies of a
    pipeline, make the model of plain ones; those whose ranks hold copies are above."""
    app = tmp_path / "scans"
    shutil.copytree(SCANS, app)
    (app / "sequence").write_text("also for the server, which has a copy of the app\n")
    grid = '"hybrid"\ncopies = 2\ncopy_parallel = "pipeline"'
    forms = ('"fsdp"', '"tensor"', grid)
    count = len(forms)
    settings = (
        *SETTINGS,
        "run.rounds=2",
        f"run.min_clients={count}",
        f"simulation.clients={count}",
    )
    with federation(tmp_path, app, clients=count) as fleet:
        for index, form in enumerate(forms):
            file = fleet.client_dir(index) / "client.toml"
            device = DEVICE.replace('"ddp"', form)
            if form == grid:
                device = device.replace("processes = 2", "processes = 4")
            file.write_text(file.read_text().replace("\n[device]\n", device))
        run = fleet.submit(*settings)
        assert fleet.wait_for_end(run)["status"] == "finished"
        rows = fleet.rounds(run)
        assert [(row["clients"], row["failures"]) for row in rows] == [(count, 0)] * 2, rows
        made = model(fleet.run_dir(run) / "model.safetensors")
    options = [part for setting in settings for part in ("--set", setting)]
    arguments = ("--executor", "sequential", "--out", str(tmp_path / "plain"), *options)
    meadow("simulate", str(app), *arguments)
    assert distance(made, model(tmp_path / "plain" / "model.safetensors")) < 1e-5
