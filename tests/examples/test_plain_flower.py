"""The example of a plain Flower app: it knows nothing of Meadow, and Meadow runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meadow.apps.folder import App
from meadow.simulations.run import simulate
from meadow.transport.tensors import TensorFile

APP = Path(__file__).parent.parent.parent / "examples" / "plain_flower"
CLIENTS = 4
ROUNDS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a simulated run, and beside it what the app itself wrote."""
    folder = tmp_path_factory.mktemp("plain")
    settings = [f"num-server-rounds={ROUNDS}", f"min-clients={CLIENTS}"]
    settings.append(f'result-file="{folder / "result.json"}"')
    summary = simulate(APP, clients=CLIENTS, out=folder / "run", overrides=settings)
    assert summary["status"] == "finished", summary["cause"]
    return folder


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Return the run's rounds."""
    return [json.loads(line) for line in (run / "run" / "metrics.jsonl").read_text().splitlines()]


def test_it_knows_nothing_of_meadow() -> None:
    """No line of its code imports Meadow."""
    sources = list(APP.rglob("*.py"))
    assert len(sources) >= 4
    assert not any("import meadow" in file.read_text() for file in sources)
    assert not any("from meadow" in file.read_text() for file in sources)


def test_it_learns(run: Path) -> None:
    """Three rounds of FedAvg read digits that no client has."""
    rows = rows_of(run)
    assert [row["round"] for row in rows] == list(range(1, ROUNDS + 1))
    assert all((row["clients"], row["failures"]) == (CLIENTS, 0) for row in rows)
    losses = [row["server"]["loss"] for row in rows]
    assert losses == sorted(losses, reverse=True)
    assert rows[-1]["server"]["accuracy"] > 0.9


def test_clients_remember(run: Path) -> None:
    """A client's state lasts from message to message, for the app and for its mod."""
    rows = rows_of(run)
    assert [row["train"]["rounds-seen"] for row in rows] == [1.0, 2.0, 3.0]
    assert [row["train"]["calls"] for row in rows] == [2.0, 4.0, 6.0]  # one question came first
    assert [row["evaluate"]["calls"] for row in rows] == [3.0, 5.0, 7.0]
    result = json.loads((run / "result.json").read_text())
    assert result["rounds-seen"] == [ROUNDS] * CLIENTS


def test_questions_are_answered(run: Path) -> None:
    """Messages of type "query" and "query.share" reach their own functions."""
    result = json.loads((run / "result.json").read_text())
    assert result["examples"] == 1797 - 360
    assert result["share"] == pytest.approx(1.0)


def test_rows_say_what_the_strategy_says(run: Path) -> None:
    """What Meadow sees going by is what the app's own strategy has computed."""
    result = json.loads((run / "result.json").read_text())
    for row in rows_of(run):
        for kind in ("train", "evaluate", "server"):
            assert row[kind] == pytest.approx(result[kind][str(row["round"])])


def test_the_model_is_kept(run: Path) -> None:
    """The run folder has the params that the strategy returned, and they are as good as it says."""
    app = App.load(APP)
    evaluate, data = (app.load_object(f"softmax.task:{n}") for n in ("evaluate", "server_data"))
    file = TensorFile.open(run / "run" / "model.safetensors", size_max=1 << 20)
    weight, bias = (np.array(tensor.numpy()) for tensor in file.tensors.values())
    metrics = evaluate({"weight": weight, "bias": bias}, data())
    assert metrics == pytest.approx(rows_of(run)[-1]["server"])


def test_shares_are_disjoint_and_complete() -> None:
    """Every example belongs to the server or to one client, under Flower's and Meadow's names."""
    client_data = App.load(APP).load_object("softmax.task:client_data")
    shares = [
        client_data({"partition-id": index, "num-partitions": CLIENTS}) for index in range(CLIENTS)
    ]
    assert sum(len(labels) for _, labels in shares) == 1797 - 360
    pictures = [image.tobytes() for images, _ in shares for image in images]
    assert len(set(pictures)) == len(pictures)
    images, _ = client_data({"site-index": 1, "site-count": CLIENTS})
    np.testing.assert_array_equal(images, shares[1][0])
    with pytest.raises(KeyError, match="partition-id"):
        client_data({})
