"""Flower's apps as they are, simulated: the numbers are those of Flower's own engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from meadow.apps.folder import App
from meadow.errors import ConfigError
from meadow.simulations.run import simulate

from .flower_engine import simulate_with_flower
from .flower_features import APPS, CASES, CLIENTS, DEPLOYED, FEATURES, Case


def run(folder: Path, app: str, *settings: str, **options: Any) -> dict[str, Any]:
    """Simulate an app and return the summary."""
    options = {"clients": CLIENTS, **options}
    return simulate(APPS / app, out=folder / "run", overrides=settings, **options)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / name).read_text().splitlines()]


def result(folder: Path) -> Any:
    return json.loads((folder / "run" / "files" / "result.json").read_text())


def assert_near(mine: Any, other: Any, tolerance: float) -> None:
    """Two JSON values are the same, numbers within the tolerance."""
    if isinstance(mine, dict):
        assert mine.keys() == other.keys()
        mine, other = list(mine.values()), [other[key] for key in mine]
    if isinstance(mine, list):
        assert len(mine) == len(other)
        for one, two in zip(mine, other, strict=True):
            assert_near(one, two, tolerance)
    else:
        assert mine == (other if isinstance(other, str) else pytest.approx(other, rel=tolerance))


@pytest.mark.parametrize("feature", FEATURES)
def test_an_app_has_what_the_table_says(feature: str) -> None:
    """Every name of a feature of docs/flower.md is in the code of the app that stands for it, and that
    app is among those that are simulated and deployed."""
    case = FEATURES[feature]
    assert case in CASES and case in DEPLOYED
    code = "".join(path.read_text() for path in (APPS / case.app).glob("*.py"))
    named = " ".join(re.findall(r"`([^`]+)`", feature))
    names = {name for name in re.findall(r"\w+", named) if name not in ("x", "y")}
    words = {"pandas": "pandas", "XGBoost": "xgboost", "Opacus": "opacus", "scikit": "sklearn"}
    names |= {name for word, name in words.items() if word in feature}
    assert not {name for name in names if not re.search(rf"\b{name}\b", code)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_numbers_are_flowers(case: Case, tmp_path: Path) -> None:
    """What an app writes is what it writes on Flower's engine."""
    pytest.importorskip("opacus" if case.settings else "flwr")
    summary = run(tmp_path, case.app, *case.settings)
    assert (summary["status"], summary["cause"]) == ("finished", None)
    app = App.load(APPS / case.app, overrides=case.settings)
    (tmp_path / "flower").mkdir()
    expected = simulate_with_flower(app, clients=CLIENTS, folder=tmp_path / "flower")
    assert_near(result(tmp_path), expected, case.tolerance)


@pytest.mark.parametrize("executor", ["sequential", "processes"])
def test_what_is_pushed_is_executed(tmp_path: Path, executor: str) -> None:
    """Gradients that are pushed, and never pulled, train the clients before they are asked again;
    every push is executed once, the last ones too."""
    summary = run(tmp_path, "vertical", "num-server-rounds=4", executor=executor)
    assert summary["status"] == "finished"
    said = result(tmp_path)
    assert said["steps"] == [4] * CLIENTS
    assert said["accuracy"][0] < 0.6
    assert said["accuracy"][-1] > 0.9
    rows = lines(tmp_path, "metrics.jsonl")
    assert [(row["round"], row["clients"], row["failures"]) for row in rows] == [
        (number, CLIENTS, 0) for number in range(1, 5)
    ]


def test_rounds_of_the_older_api_are_counted(tmp_path: Path) -> None:
    """Three rounds are three rows with every client, the app's own means, and the params at the
    end; the same bytes twice."""
    for name in ("one", "two"):
        run(tmp_path / name, "older")
    rows = lines(tmp_path / "one", "metrics.jsonl")
    assert [(row["round"], row["clients"], row["failures"]) for row in rows] == [
        (number, CLIENTS, 0) for number in (1, 2, 3)
    ]
    said = result(tmp_path / "one")["rounds"]
    assert [row["train"] for row in rows] == [{"loss": each["loss"]} for each in said]
    assert [row["server"]["loss"] for row in rows] == [1.0, 2.0, 3.0]
    assert all({"loss", "largest"} == row["evaluate"].keys() for row in rows)
    assert rows[0]["evaluate"]["loss"] == pytest.approx(rows[1]["train"]["loss"])
    models = [
        (tmp_path / name / "run" / "model.safetensors").read_bytes() for name in ("one", "two")
    ]
    assert models[0] == models[1]
    assert result(tmp_path / "two")["rounds"] == said


def test_several_exchanges_are_one_round(tmp_path: Path) -> None:
    """SecAgg+ asks each client four times a round."""
    run(tmp_path, "secure_sum")
    rows = lines(tmp_path, "metrics.jsonl")
    assert [(row["round"], row["clients"], row["failures"]) for row in rows] == [
        (number, CLIENTS, 0) for number in (1, 2, 3)
    ]


def test_too_few_clients_for_a_secure_sum(tmp_path: Path) -> None:
    """The run has failed, and the cause says how many clients are wanted."""
    summary = run(tmp_path, "secure_sum", "shares=5", "threshold=4")
    assert summary["status"] == "failed"
    assert "it wants 4 clients, and 3 answered" in summary["cause"]


@pytest.mark.parametrize("app", ["older", "logistic"])
def test_too_few_clients_for_a_strategy(tmp_path: Path, app: str) -> None:
    """A strategy that would wait for clients forever says how many it wants."""
    summary = run(tmp_path, app, clients=1)
    assert summary["status"] == "failed"
    assert "waits for 2 clients, and there are 1" in summary["cause"]


def test_a_run_of_questions_shows_what_it_did(tmp_path: Path) -> None:
    """Each batch of questions is a round; numbers, lists and text are kept."""
    run(tmp_path, "survey", node_config={"dataset-path": "/data/all"})
    rows = lines(tmp_path, "metrics.jsonl")
    assert [(row["round"], row["clients"], row["query"]) for row in rows] == [
        (number, CLIENTS, {"mean": 14.5}) for number in (1, 2)
    ]
    answers = lines(tmp_path, "answers.jsonl")
    assert len(answers) == 2 * CLIENTS
    assert answers[0]["records"] == {
        "metrics": {"mean": 4.5, "counts": [10, 0, 0]},
        "words": {"from": "/data/all", "note": "site 0 is fine"},
    }


def test_text_is_kept(tmp_path: Path) -> None:
    """Params that are text, text among metrics, and a central evaluation that is a list."""
    run(tmp_path, "histogram")
    kept = json.loads((tmp_path / "run" / "result.json").read_text())
    assert next(iter(kept.values())) == "length:"
    answers = lines(tmp_path, "answers.jsonl")
    assert answers[0]["records"] == {"fitres.metrics": {"site": "a clinic"}}
    assert answers[-1]["client"] is None
    assert answers[-1]["records"]["server"]["histogram"] == list(kept.values())


@pytest.mark.parametrize("executor", ["sequential", "processes", "ray"])
def test_logs_prints_and_files_are_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    executor: str,
) -> None:
    """What the app logs, prints and writes is in the run's folder, once; the first two are shown
    too, wherever the clients run."""
    pytest.importorskip("ray" if executor == "ray" else "flwr")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run(tmp_path, "noisy", executor=executor)
    shown = capfd.readouterr()
    kept = (tmp_path / "run" / "app.log").read_text()
    for text in ("the noisy app logs", "the noisy app prints", "client 2 trains", "[ROUND 3/3]"):
        assert text in kept
        assert text in shown.out + shown.err
    assert kept.count("client 2 trains") == 3  # rounds
    assert (shown.out + shown.err).count("client 2 trains") == 3
    assert "\x1b[" not in kept
    assert (tmp_path / "run" / "files" / "checkpoints" / "final.npy").exists()
    assert list(Path.cwd().iterdir()) == []


def test_a_federation_says_how_many_clients(tmp_path: Path) -> None:
    """`options.num-supernodes` of the default federation is the number of clients."""
    folder = tmp_path / "survey"
    folder.mkdir()
    for file in (APPS / "survey").glob("*.*"):
        (folder / file.name).write_text(file.read_text())
    table = '[tool.flwr.federations]\ndefault = "here"\n[tool.flwr.federations.here]\n'
    with (folder / "pyproject.toml").open("a") as file:
        file.write(f"\n{table}options.num-supernodes = 2\n")
    simulate(folder, out=tmp_path / "run")
    assert lines(tmp_path, "metrics.jsonl")[0]["clients"] == 2
    simulate(folder, out=tmp_path / "more", clients=4)
    assert (
        json.loads((tmp_path / "more" / "metrics.jsonl").read_text().splitlines()[0])["clients"]
        == 4
    )


def test_a_place_cannot_be_given(tmp_path: Path) -> None:
    """Every simulated client has a place of its own."""
    with pytest.raises(ConfigError, match="--node-config cannot set partition-id"):
        run(tmp_path, "survey", node_config={"partition-id": 1})


FAILING = """
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client_app, server_app = ClientApp(), ServerApp()


@client_app.query()
def answer(message, context):
    raise ValueError("the table has no column age")


@server_app.main()
def main(grid, context):
    grid.send_and_receive([Message(RecordDict(), n, "query") for n in grid.get_node_ids()])
"""


def failing_app(folder: Path, code: str) -> Path:
    """Return the folder of an app with this code."""
    folder.mkdir()
    module = f"{folder.name}_app"
    (folder / f"{module}.py").write_text(code)
    text = (APPS / "survey" / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(text.replace("survey", folder.name))
    return folder


def test_nobody_answered(tmp_path: Path) -> None:
    """The run has failed, and the cause is what the clients said."""
    app = failing_app(tmp_path / "nobody", FAILING)
    summary = simulate(app, out=tmp_path / "run", clients=2)
    assert summary["status"] == "failed"
    assert "no client has answered" in summary["cause"]
    assert "the table has no column age" in summary["cause"] and "2 times" in summary["cause"]


def test_nobody_was_there_to_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app that finds no client, and goes on, has failed."""
    monkeypatch.setattr(
        "meadow.simulations.grids.simulation_grid.SimulationGrid.get_node_ids", lambda grid: []
    )
    summary = simulate(failing_app(tmp_path / "empty", FAILING), out=tmp_path / "run", clients=2)
    assert summary["status"] == "failed"
    assert summary["cause"].startswith("no client was connected")


def test_somebody_answered(tmp_path: Path) -> None:
    """One client's answer is enough."""
    code = FAILING.replace(
        "    raise", '    if context.node_config["partition-id"]: raise'
    ).rstrip()
    code = code.replace(
        'no column age")', 'no column age")\n    return Message(RecordDict(), reply_to=message)'
    )
    app = failing_app(tmp_path / "somebody", code)
    summary = simulate(app, out=tmp_path / "run", clients=2)
    assert summary["status"] == "finished"
    (row,) = lines(tmp_path, "metrics.jsonl")
    assert (row["clients"], row["failures"]) == (1, 1)
    (failed,) = row["failed"]
    assert (failed["client"], failed["fault"]) == (2, "raised")
    assert "ValueError: the table has no column age (somebody_app.py, line " in failed["reason"]
    (cause,) = summary["failures"]
    assert (cause["reason"], cause["times"], cause["clients"]) == (
        failed["reason"],
        1,
        ["client 2"],
    )
    kept = (tmp_path / "run" / "tracebacks.log").read_text()
    assert kept.startswith("client 2:\nTraceback") and kept.count("Traceback") == 1
