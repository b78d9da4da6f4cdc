"""Simulations in which clients add the noise: within secure sums, or to their own updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from meadow.errors import StoreError
from meadow.run.run_folder import RunFolder
from meadow.simulations.run import resume, simulate

from .test_private import rows_of, written

PRIVATE = 'sampling = "fixed"\nnoise_multiplier = {noise}\nnoise = "{source}"\n'
SECURE = "[privacy.secure_aggregation]\nenabled = true\nbits = {bits}\n"
FEW = ["run.cohort=4", "run.min_clients=3", "simulation.clients=4"]


def app(folder: Path, source: str, *, noise: float = 1e-3, rounds: int = 2, bits: int = 32) -> Path:
    """Write an app whose clients add noise."""
    more = PRIVATE.format(noise=noise, source=source)
    if source.startswith("distributed"):
        more += SECURE.format(bits=bits)
    return written(folder, more, rounds=rounds)


def model_of(out: Path, app: Path, **options: Any) -> dict[str, Any]:
    """Return the model of a run with four clients."""
    simulate(app, out=out, overrides=FEW, **options)
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize("source", ["distributed", "distributed_gaussian", "local_gaussian"])
def test_with_hardly_any_noise_it_is_the_servers_mean(tmp_path: Path, source: str) -> None:
    """The same clips, the same divisor: the model is that of noise on the server."""
    served = app(tmp_path / "served", "server")
    models = [model_of(tmp_path / "one", served, executor="sequential")]
    models.append(model_of(tmp_path / "other", app(tmp_path / source, source)))
    if source == "local_gaussian":
        executor = "vectorized"
        models.append(model_of(tmp_path / "third", tmp_path / source, executor=executor))
    for other in models[1:]:
        for name, values in models[0].items():
            assert np.abs(values - other[name]).max() < 2e-3
            assert np.abs(values).max() > 0.1


@pytest.mark.parametrize(
    ("source", "name"),
    [("distributed", "Skellam"), ("distributed_gaussian", "discrete Gaussian")],
)
def test_it_says_what_it_claims(tmp_path: Path, source: str, name: str) -> None:
    """Every round's epsilon, and in words who adds the noise."""
    made = app(tmp_path / "app", source, noise=3.0)
    summary = simulate(made, out=tmp_path / "out", overrides=FEW)
    rows = rows_of(tmp_path / "out")
    assert [row["privacy"]["releases"] for row in rows] == [1, 2]
    assert rows[0]["privacy"]["epsilon"] < rows[1]["privacy"]["epsilon"]
    assert all(row["train"] == {} and row["evaluate"] == {} for row in rows)
    said = summary["privacy"]
    noise = f"{name} noise of multiplier 3, added by the clients within secure sums"
    assert noise in said["claim"]
    assert said["mechanism"] == f"distributed {name}, fixed clipping" and said["unit"] == "client"


def test_laplace_noise_is_claimed_in_its_own_norm(tmp_path: Path) -> None:
    """Two rounds spend twice sqrt(2) / multiplier, without a delta."""
    made = app(tmp_path / "app", "local_laplace", noise=8.0)
    said = simulate(made, out=tmp_path / "out", overrides=FEW, executor="vectorized")["privacy"]
    assert said["epsilon"] == pytest.approx(2 * 2**0.5 / 8)
    assert "L1 norm" in said["claim"] and "noisy updates of each client" in said["claim"]


def test_a_round_is_counted_before_its_clients_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the sum and the commit: what the server saw is in the ledger, twice now."""
    made, commit = app(tmp_path / "app", "local_gaussian", noise=3.0), RunFolder.commit

    def failing(self: RunFolder, checkpoint: Any, row: Any, table: Any) -> Any:
        if checkpoint.state.round == 2:
            raise StoreError("the disk is full")
        return commit(self, checkpoint, row, table)

    monkeypatch.setattr(RunFolder, "commit", failing)
    failed = simulate(made, out=tmp_path / "out", overrides=FEW, executor="sequential")
    assert failed["rounds"] == 1 and failed["privacy"]["releases"] == 2
    monkeypatch.undo()
    assert resume(tmp_path / "out")["privacy"]["releases"] == 3


def test_sums_that_could_wrap_are_refused_before_a_round(tmp_path: Path) -> None:
    """By the size of the model, the cohort, the noise and the bits."""
    made = app(tmp_path / "app", "distributed", noise=100.0, bits=17)
    failed = simulate(made, out=tmp_path / "out", overrides=FEW)
    assert failed["status"] == "failed" and failed["rounds"] == 0
    assert "17 bits hold less than 65536; raise privacy.secure_aggregation.bits" in failed["cause"]
    assert failed["privacy"]["releases"] == 0
