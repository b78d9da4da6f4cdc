"""Compression and robust aggregation over gRPC: the models that a simulation gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import Federation, federation, meadow

pytestmark = pytest.mark.fleet

DIGITS = Path(__file__).parents[1] / "shared" / "digits"
CLIENTS = 3
SETTINGS = (f"run.min_clients={CLIENTS}", f"simulation.clients={CLIENTS}", "run.rounds=3")
TABLES = {
    "plain": (),
    "sparse": ("compression.upload=top_k", "compression.fraction=0.05", "compression.zstd=true"),
    "both ways": ("compression.upload=int8", "compression.download=int8"),
    "robust": ("robust.aggregation=median", 'robust.preaggregation=["nnm"]'),
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server and three agents."""
    with federation(tmp_path_factory.mktemp("packed"), DIGITS, clients=CLIENTS) as running:
        yield running


@pytest.mark.parametrize("table", TABLES)
def test_the_model_is_the_simulation_s(fleet: Federation, tmp_path: Path, table: str) -> None:
    """To the last bit, what clients keep between rounds included; and fewer bytes travel."""
    settings = (*SETTINGS, *TABLES[table])
    run = fleet.submit(*settings)
    summary = fleet.wait_for_end(run)
    assert summary["status"] == "finished", summary
    options = [part for setting in settings for part in ("--set", setting)]
    out = tmp_path / "simulated"
    meadow("simulate", str(DIGITS), "--executor", "sequential", "--out", str(out), *options)
    model = (fleet.run_dir(run) / "model.safetensors").read_bytes()
    assert model == (out / "model.safetensors").read_bytes()
    whole = len(model) * CLIENTS
    row = fleet.rounds(run)[0]
    assert row["clients"] == CLIENTS and not row["failures"]
    assert (row["bytes_received"] < 0.5 * whole) == (table in ("sparse", "both ways"))
    assert (row["bytes_sent"] < 1.2 * whole) == (table == "both ways")
