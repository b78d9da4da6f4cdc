"""Flower's apps as they are, deployed: a real federation writes what the simulation writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from meadow.simulations.run import simulate

from .flower_features import APPS, CLIENTS, DEPLOYED, Case
from .processes import Federation, meadow
from .test_flower_simulated import assert_near

pytestmark = pytest.mark.fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server and three clients whose owners have installed every app."""
    made = Federation(tmp_path_factory.mktemp("fleet"), APPS / "survey")
    apps = "".join(f'{folder.name} = "{folder}"\n' for folder in sorted(APPS.iterdir()))
    try:
        made.start_server()
        for index in range(CLIENTS):
            made.enroll(index)
            text = f'[apps]\n{apps}\n[data]\ndataset-path = "/data/{index}"\n'
            (made.client_dir(index) / "client.toml").write_text(text)
        made.start_clients(CLIENTS)
        yield made
    finally:
        made.close()


def submitted(fleet: Federation, case: Case, out: Path) -> Path:
    """Run an app to its end and return the pulled folder."""
    options = [part for setting in case.settings for part in ("--set", setting)]
    where = ("--dir", str(fleet.server_dir))
    said = meadow("run", "submit", str(APPS / case.app), *where, *options)
    summary = fleet.wait_for_end(said["run"])
    log = (fleet.run_dir(said["run"]) / "worker.log").read_text()
    assert (summary["status"], summary["cause"]) == ("finished", None), log
    meadow("run", "pull", str(said["run"]), *where, "--out", str(out))
    return out


@pytest.mark.parametrize("case", DEPLOYED, ids=lambda case: case.name)
def test_it_does_what_the_simulation_does(fleet: Federation, case: Case, tmp_path: Path) -> None:
    """The app's own results, and every round's clients, failures and metrics, are the same; what
    it printed and wrote comes with the run's folder."""
    pytest.importorskip("opacus" if case.settings else "flwr")
    pulled = submitted(fleet, case, tmp_path / "pulled")
    run = tmp_path / "run"
    simulate(APPS / case.app, clients=CLIENTS, overrides=case.settings, out=run)
    mine, other = (
        json.loads((folder / "files" / "result.json").read_text()) for folder in (pulled, run)
    )
    assert_near(mine, other, case.tolerance)
    keys = ("round", "clients", "failures", "train", "evaluate", "server")
    rows, simulated = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (pulled, run)
    )
    for row, same in zip(rows, simulated, strict=True):
        assert_near({k: row[k] for k in keys}, {k: same[k] for k in keys}, case.tolerance)
    assert (pulled / "app.log").exists()
    if case.app == "noisy":
        assert "the noisy app logs" in (pulled / "app.log").read_text()
        assert (pulled / "files" / "checkpoints" / "final.npy").exists()
    if case.app == "survey":
        answers = (pulled / "answers.jsonl").read_text()
        assert all(f'"from": "/data/{index}"' in answers for index in range(CLIENTS))
