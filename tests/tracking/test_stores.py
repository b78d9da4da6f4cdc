"""Runs in MLflow's and Weights & Biases' own stores, read back with their own readers."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import meadow
from meadow.tracking.identity import read_id, write_id

MlflowClient = pytest.importorskip("mlflow").MlflowClient
ROUNDS = 3
WAIT_S = 60.0
BLOCK = 1 << 15


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log file: blocks of 32 KiB, and in them pieces with a header of
    checksum, length and kind (1 whole, 2 first, 3 middle, 4 last).

    Source: LevelDB, doc/log_format.md; Weights & Biases puts 7 bytes before the first block's.
    """
    place, record = 7, b""
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
        length, kind = struct.unpack_from("<HB", data, place + 4)
        if place + 7 + length > len(data):  # it is being written
            return
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def interrupted(after: int) -> Callable[[str, Any], None]:
    """Return a listener that interrupts the run when this round is committed."""

    def listen(kind: str, detail: Any) -> None:
        if kind == "round_committed" and detail["round"] == after:
            raise KeyboardInterrupt

    return listen


def test_a_run_that_goes_on_is_one_run_in_mlflow(task: meadow.Task, tmp_path: Path) -> None:
    """Settings, every round once with the values of metrics.jsonl, and the files."""
    uri, folder = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "run"
    given = {"mlflow": uri, "experiment": "plane"}
    begun = meadow.simulate(
        task, clients=3, rounds=ROUNDS, out=folder, tracking=given, on_event=interrupted(2)
    )
    assert begun.status == "stopped"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("plane")
    (stored,) = client.search_runs([experiment.experiment_id])
    assert stored.info.status == "KILLED"

    run = meadow.resume(begun)
    assert run.status == "finished"
    (stored,) = client.search_runs([experiment.experiment_id])
    assert stored.info.status == "FINISHED"
    assert stored.info.run_name == "run"
    assert stored.data.params["run.rounds"] == str(ROUNDS)
    assert "tracking.mlflow" not in stored.data.params
    for name, part in (("train/loss", "train"), ("server/accuracy", "server")):
        history = client.get_metric_history(stored.info.run_id, name)
        key = name.partition("/")[2]
        assert [(each.step, each.value) for each in history] == [
            (row["round"], row[part][key]) for row in rows_of(folder)
        ]
    files = {each.path for each in client.list_artifacts(stored.info.run_id)}
    assert {"meadow.toml", "summary.json", "model.safetensors"} <= files
    assert "clients.jsonl" not in files
    artifacts = Path(experiment.artifact_location.removeprefix("file://")) / stored.info.run_id
    assert (artifacts / "artifacts/model.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()


def test_a_run_in_weights_and_biases_stays_on_this_machine(
    task: meadow.Task, tmp_path: Path
) -> None:
    """Its file has each round; neither code nor anything of the machine goes along."""
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    folder = tmp_path / "run"
    meadow.simulate(task, clients=3, rounds=ROUNDS, out=folder, tracking={"wandb": "offline"})
    steps: dict[int, dict[str, Any]] = {}
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    until_s = time.monotonic() + WAIT_S
    logged: list[Any] = []
    while not any(record.HasField("exit") for record in logged):
        # another process writes the file, and has been told to end
        assert time.monotonic() < until_s, "the log has no end"
        time.sleep(0.05)
        logged = [records.Record.FromString(data) for data in log_records(file.read_bytes())]
    for record in logged:
        if record.HasField("history"):
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            steps[record.history.step.num] = values
    for row in rows_of(folder):
        assert steps[row["round"]]["train/loss"] == row["train"]["loss"]
    assert len(steps) == ROUNDS
    names = {path.name for path in file.parent.joinpath("files").iterdir()}
    assert "model.safetensors" in names
    assert not names & {"clients.jsonl", "requirements.txt", "wandb-metadata.json", "output.log"}


def test_ids_are_kept_with_the_run(tmp_path: Path) -> None:
    """A damaged file is named, with what to do."""
    write_id(tmp_path, "a", "1")
    write_id(tmp_path, "b", "2")
    assert (read_id(tmp_path, "a"), read_id(tmp_path, "b")) == ("1", "2")
    assert read_id(tmp_path, "c") is None
    (tmp_path / "tracking.json").write_text("[")
    with pytest.raises(meadow.MeadowError, match=r"tracking\.json is damaged; remove it"):
        read_id(tmp_path, "a")
