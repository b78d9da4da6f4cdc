"""The run folder: what was committed is there, whatever happened to the process or the disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from safetensors.numpy import load_file

from meadow.errors import StoreError
from meadow.flower.messages import arrays_to_params, tensors_of
from meadow.run import run_folder
from meadow.run.run_folder import RunFolder
from meadow.server.daemon.admin import _results
from meadow.strategies.algorithms.algorithm import State
from meadow.strategies.rounds.recorder import Checkpoint, RoundTable
from meadow.transport.tensors import FileTensor


class Events(list[tuple[str, Any]]):
    """Hears what a run tells."""

    def __call__(self, kind: str, detail: Any) -> None:
        self.append((kind, dict(detail)))


def opened(path: Path, events: Events | None = None) -> RunFolder:
    heard = Events() if events is None else events
    return RunFolder(path, config_toml="[run]\nrounds = 9\n", on_event=heard)


def row_of(number: int) -> dict[str, Any]:
    return {
        "round": number,
        "duration_s": 0.5,
        "clients": 3,
        "failures": 0,
        "train": {"loss": 1 / number, "accuracy": None},
        "evaluate": {"loss": 2 / number},
        "server": {},
        "bytes_sent": 10,
        "bytes_received": 20,
        "privacy": None,
    }


def checkpoint_of(number: int, *, slots: bool = True) -> Checkpoint:
    generator = np.random.default_rng(number)
    params = {
        "layer/0.weight": generator.standard_normal((3, 4)).astype(np.float32),
        "count": np.array(number),
    }
    second = {name: generator.standard_normal(array.shape) for name, array in params.items()}
    return Checkpoint(
        state=State(params=params, round=number, slots={"momentum": second} if slots else {}),
        best={"round": number, "metric": "evaluate.loss", "mode": "min", "value": 2 / number,
              **{part: row_of(number)[part] for part in ("train", "evaluate", "server")}},
        stale_rounds=number % 3,
        history=[row_of(each) for each in range(1, number + 1)],
    )  # fmt: skip


def commit(folder: RunFolder, number: int, **options: Any) -> Any:
    return folder.commit(checkpoint_of(number, **options), row_of(number), RoundTable())


def same(found: Checkpoint | None, number: int) -> bool:
    """Whether a checkpoint is the one that was committed for a round, bit by bit."""
    expected = checkpoint_of(number)
    return (
        found is not None
        and found.state.round == number
        and _bytes(found.state.params) == _bytes(expected.state.params)
        and {s: _bytes(p) for s, p in found.state.slots.items()}
        == {s: _bytes(p) for s, p in expected.state.slots.items()}
        and (found.best, found.stale_rounds) == (expected.best, expected.stale_rounds)
        and list(found.history) == list(expected.history)
    )


def _bytes(params: Any) -> dict[str, Any]:
    return {name: (a.dtype.name, a.shape, np.asarray(a).tobytes()) for name, a in params.items()}


def rows(path: Path) -> list[int]:
    return [json.loads(line)["round"] for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_a_commit_leaves_the_model_and_the_row(tmp_path: Path) -> None:
    """model.safetensors opens with its own library; the params are one file under two names."""
    folder = opened(tmp_path)
    record = commit(folder, 1)
    expected = checkpoint_of(1).state.params
    model = load_file(tmp_path / "model.safetensors")
    assert _bytes({name: model[name] for name in expected}) == _bytes(expected)
    assert list(record) == list(expected)
    assert _bytes(arrays_to_params(record)) == _bytes(expected)
    assert all(isinstance(tensor, FileTensor) for tensor in tensors_of(record).values())
    checkpoint = tmp_path / "checkpoints" / "round-000001.safetensors"
    assert os.path.samefile(checkpoint, tmp_path / "model.safetensors")
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == row_of(1)
    assert (tmp_path / "meadow.toml").read_text() == "[run]\nrounds = 9\n"


def test_a_new_folder_has_no_checkpoint(tmp_path: Path) -> None:
    """A run that never committed a round begins anew."""
    assert opened(tmp_path / "runs" / "new").resume() is None


def test_the_newest_checkpoint_comes_back(tmp_path: Path) -> None:
    """Params, slots, best, patience and history are those of the last commit."""
    folder = opened(tmp_path)
    for number in (1, 2, 3):
        commit(folder, number)
    assert same(opened(tmp_path).resume(), 3)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == [
        f"round-00000{number}.{kind}"
        for number in (2, 3)
        for kind in ("json", "safetensors", "slots.safetensors")
    ]


def test_slots_are_written_only_if_there_are_any(tmp_path: Path) -> None:
    """Plain FedAvg has one file of tensors a round."""
    folder = opened(tmp_path)
    commit(folder, 1, slots=False)
    assert len(list((tmp_path / "checkpoints").glob("*.safetensors"))) == 1
    found = opened(tmp_path).resume()
    assert found is not None and found.state.slots == {}


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink()
    path.write_bytes(data)


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-3])


DAMAGE: dict[str, Callable[[Path], None]] = {
    "flipped": _flip,
    "cut": _cut,
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b"") and None,
    "other": lambda path: path.write_bytes(b"[1, 2]") and None,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", ["json", "safetensors", "slots.safetensors"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, kind: str, damage: str) -> None:
    """Whichever file is damaged, the run goes on from the round before, and says so."""
    if (kind, damage) == ("json", "flipped"):
        pytest.skip("a manifest's last byte is a brace: cut covers it")
    folder = opened(tmp_path)
    commit(folder, 1)
    commit(folder, 2)
    path = tmp_path / "checkpoints" / f"round-000002.{kind}"
    _free(tmp_path, path)
    DAMAGE[damage](path)
    events = Events()
    again = opened(tmp_path, events)
    assert same(again.resume(), 1)
    told = [detail["file"] for name, detail in events if name == "checkpoint_damaged"]
    assert told == ([] if (kind, damage) == ("json", "gone") else ["round-000002.json"])
    assert rows(tmp_path) == [1]
    model = load_file(tmp_path / "model.safetensors")
    assert int(model["count"]) == 1
    commit(again, 2)
    assert same(opened(tmp_path).resume(), 2)


def _free(folder: Path, path: Path) -> None:
    """Make model.safetensors another file, so that only the checkpoint is damaged."""
    model = folder / "model.safetensors"
    data = model.read_bytes()
    if os.path.samefile(path, model):
        model.unlink()
        model.write_bytes(data)


def test_when_all_are_damaged_nothing_is_made_up(tmp_path: Path) -> None:
    """A run whose checkpoints are all damaged does not silently begin anew."""
    folder = opened(tmp_path)
    commit(folder, 1)
    commit(folder, 2)
    for path in (tmp_path / "checkpoints").glob("*.json"):
        path.write_text("{")
    with pytest.raises(StoreError, match=r"all checkpoints in .* are damaged; restore them"):
        opened(tmp_path).resume()


@pytest.mark.parametrize(
    "left",
    [
        b"",
        b'{"round": 1}\n',
        b'{"round": 1}\n{"round": 2, "tr',
        b'{"round": 1}\n{"round": 2}',
        b'{"round": 1}\n{"round": 2}\n{"round": 3}\n',
        b'{"round": 1}\n{"round": 2}\n{"rou',
        b'{"round": 1}\n{"round": 2}\n17\n',
    ],
)
def test_metrics_are_repaired(tmp_path: Path, left: bytes) -> None:
    """Whatever a crash left of metrics.jsonl, it ends with the checkpoint's round."""
    folder = opened(tmp_path)
    commit(folder, 1)
    commit(folder, 2)
    (tmp_path / "metrics.jsonl").write_bytes(left)
    again = opened(tmp_path)
    found = again.resume()
    assert found is not None and found.state.round == 2
    assert rows(tmp_path)[-1] == 2
    assert [row["round"] for row in found.history] == rows(tmp_path)
    commit(again, 3)
    assert rows(tmp_path)[-2:] == [2, 3]


class KilledError(BaseException):
    """Stands for a process that is no more."""


STEPS = ["write_tensors", "write_file", "link", "replace", "unlink", "append"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_loses_no_committed_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, count: int, after: bool
) -> None:
    """Killed before or after any write of round 4, the run goes on from 3 or from 4, whole."""
    folder = opened(tmp_path)
    for number in (1, 2, 3):
        commit(folder, number)
    left = [count]

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                raise KilledError
            result = function(*args, **kwargs)
            if left[0] == 0:
                raise KilledError
            return result

        return called

    targets = {
        "write_tensors": (run_folder, "write_tensors"),
        "write_file": (run_folder, "write_file"),
        "link": (os, "link"),
        "replace": (os, "replace"),
        "unlink": (Path, "unlink"),
        "append": (RunFolder, "_append"),
    }
    home, name = targets[step]
    with monkeypatch.context() as patched:
        patched.setattr(home, name, dying(getattr(home, name)))
        killed = False
        try:
            commit(folder, 4)
        except KilledError:
            killed = True
    durable = (tmp_path / "checkpoints" / "round-000004.json").exists()
    assert killed or durable
    again = opened(tmp_path)
    assert same(again.resume(), 4 if durable else 3)
    assert rows(tmp_path) == [1, 2, 3, 4][: 4 if durable else 3]
    if not durable:
        commit(again, 4)
    commit(again, 5)
    assert same(opened(tmp_path).resume(), 5)
    assert not list(tmp_path.rglob("*.tmp"))


def test_clients_states_are_kept_with_the_checkpoint(tmp_path: Path) -> None:
    """A simulation's clients get back what they had at the round that the run goes on from."""
    versions = count(1)
    loaded: list[dict[str, str]] = []

    def save() -> dict[str, str]:
        return {"version": str(next(versions))}

    def load(saved: Any) -> None:
        loaded.append(dict(saved))

    folder = opened(tmp_path)
    folder.checkpoints.keep_client_states(save, load)
    for number in (1, 2, 3):
        commit(folder, number)
    again = opened(tmp_path)
    again.checkpoints.keep_client_states(save, load)
    assert same(again.resume(), 3)
    assert loaded == [{"version": "3"}]


def test_the_summary_says_how_it_ended(tmp_path: Path) -> None:
    """summary.json has the status, the cause, and the final round's metrics."""
    folder = opened(tmp_path)
    commit(folder, 1)
    commit(folder, 2)
    found = folder.finish(status="failed", cause="no quorum", result=None, duration_s=1.23456)
    assert found == json.loads((tmp_path / "summary.json").read_text())
    assert (found["status"], found["cause"], found["rounds"]) == ("failed", "no quorum", 2)
    assert found["final"] == {p: row_of(2)[p] for p in ("round", "train", "evaluate", "server")}
    assert found["duration_s"] == 1.235
    opened(tmp_path)
    assert not (tmp_path / "summary.json").exists(), "a run that goes on has no summary yet"


def test_a_full_disk_is_a_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round before stays what it was, and the error says which file and why."""
    folder = opened(tmp_path)
    commit(folder, 1)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", full)
        with pytest.raises(StoreError, match=r"model.safetensors .*: No space left on device"):
            commit(folder, 2)
    found = opened(tmp_path).resume()
    assert found is not None and found.state.round in (1, 2)


def test_a_line_that_a_full_disk_has_cut_does_not_hide_the_cause(tmp_path: Path) -> None:
    """The run ends with what the disk said, and its summary tells the last whole round."""
    folder = opened(tmp_path)
    commit(folder, 1)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 2, "durat')
    summary = folder.finish(status="failed", cause="No space left", result=None, duration_s=1.0)
    assert (summary["rounds"], summary["cause"]) == (1, "No space left")


def manifest_of(folder: Path, number: int) -> Path:
    """Return where a round's manifest lies."""
    return folder / "checkpoints" / f"round-{number:06d}.json"


def test_no_flipped_bit_of_a_manifest_is_believed(tmp_path: Path) -> None:
    """Whichever it is: the round before is taken, and the event says which file is damaged."""
    folder = opened(tmp_path)
    for number in (5, 6):
        commit(folder, number)
    path = manifest_of(tmp_path, 6)
    good = path.read_bytes()
    for place in range(0, len(good) * 8, 11):
        data = bytearray(good)
        data[place // 8] ^= 1 << place % 8
        path.write_bytes(data)
        told: list[Any] = []
        kept = folder.checkpoints.newest(
            lambda kind, detail, told=told: told.append((kind, detail))
        )
        assert kept is not None and kept.state.round == 5, place
        ((kind, detail),) = told
        assert (kind, detail["file"]) == ("checkpoint_damaged", path.name)


WRONG: list[dict[str, Any]] = [
    {"round": 7}, {"round": "6"}, {"round": None}, {"round": 6.0}, {"files": []}, {"files": {"params": 3}},
    {"files": {}}, {"files": {"params": {"name": 1, "size_bytes": 2, "crc32": 3}}}, {"slots": 3}, {"slots": None},
    {"best": 4}, {"stale_rounds": "x"}, {"row": []}, {"clients": 3}, {"crc32": None}, {"crc32": "1"},
]  # fmt: skip


@pytest.mark.parametrize("seals", [False, True])
@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_manifest_of_wrong_values_is_passed_over(
    tmp_path: Path, wrong: dict[str, Any], seals: bool
) -> None:
    """Of wrong types too, and whether its checksum fits or not."""
    folder = opened(tmp_path)
    for number in (5, 6):
        commit(folder, number)
    path = manifest_of(tmp_path, 6)
    manifest = json.loads(path.read_text()) | wrong
    if seals and "crc32" not in wrong:
        del manifest["crc32"]
        manifest["crc32"] = crc32(json.dumps(manifest).encode())
    path.write_text(json.dumps(manifest))
    events = Events()
    found = opened(tmp_path, events).resume()
    assert found is not None and found.state.round == 5
    assert [kind for kind, _ in events] == ["checkpoint_damaged"]


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", "null", "[" * 100_000, "\0"])
def test_a_manifest_that_is_none_is_passed_over(tmp_path: Path, text: str) -> None:
    """Whatever is in its place."""
    folder = opened(tmp_path)
    for number in (5, 6):
        commit(folder, number)
    manifest_of(tmp_path, 6).write_text(text)
    found = opened(tmp_path).resume()
    assert found is not None and found.state.round == 5


def test_failures_are_in_the_rounds_row_and_in_the_summary(tmp_path: Path) -> None:
    """Sites by name, what they were at and why, bounded; a round without a row is in the summary."""
    events = Events()
    folder = RunFolder(
        tmp_path,
        config_toml="",
        on_event=events,
        about=lambda client: {"site": f"site-{client}", "log": "training.log"},
    )
    raised = {"reason": "OSError: no disk", "fault": "raised", "during": "evaluate"}
    for client in range(100, 0, -1):
        folder.event("client_failed", {"round": 1, "client": client, **raised})
    refused = {"client": 7, "field": "loss", "reason": "is not finite"}
    folder.event("update_refused", {"round": 2, **refused})
    folder.append_row({**row_of(1), "failures": 100})
    (row,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert len(row["failed"]) == 20
    assert row["failed"][0] == {"client": 1, "site": "site-1", **raised}
    summary = folder.finish(status="failed", cause="too few", result=None, duration_s=1.0)
    assert [(cause["reason"], cause["times"]) for cause in summary["failures"]] == [
        ("OSError: no disk", 20),
        ("loss is not finite", 1),
    ]
    assert summary["failures"][1]["clients"] == ["site-7"]
    assert len(summary["failures"][0]["clients"]) == 5
    logs = [detail.get("log") for kind, detail in events if "client" in detail]
    assert logs == ["training.log"] * 100 + [None]  # a refused update is nothing that an app logs


def test_what_is_pulled(tmp_path: Path) -> None:
    """Results, what apps wrote, and no secret of the server's."""
    for name in ("metrics.jsonl", "message-ids.key", "files/own.key", "app/task.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [path.relative_to(tmp_path).as_posix() for path in _results(tmp_path)] == [
        "files/own.key",
        "metrics.jsonl",
    ]


def test_tracebacks_are_kept_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose each is comes before it; a full file takes no more, and no single one is endless."""
    monkeypatch.setattr(run_folder, "TRACEBACKS_BYTES_MAX", 20_000)
    folder = opened(tmp_path)
    folder.traceback("Traceback\nValueError: a\n")
    for _ in range(9):
        folder.traceback("x" * 100_000, 3)
    text = (tmp_path / "tracebacks.log").read_text()
    assert text.startswith("the server:\nTraceback\nValueError: a\n\nclient 3:\nxxx")
    assert len(text) < 30_000


def test_a_mean_that_an_optimizer_has_used_up_goes(tmp_path: Path) -> None:
    """A server optimizer makes other params of a mean: its file does not stay until the run ends."""
    folder = opened(tmp_path / "run")
    forms = {"w": (np.dtype(np.float32), (700, 1000))}
    for number in (1, 2):
        mean = folder.checkpoints.store(forms)
        assert mean is not None
        mean.flats[0][:] = number
        values = mean.finish(forms)["w"] + 1
        record = folder.commit(
            Checkpoint(state=State(params={"w": values}, round=number)),
            row_of(number),
            RoundTable(),
        )
        assert not list((tmp_path / "run" / "checkpoints").glob(".mean.*"))
        assert arrays_to_params(record)["w"].min() == number + 1


def test_a_large_mean_is_the_checkpoints_file(tmp_path: Path) -> None:
    """It is written once, in the folder of the checkpoints: a round takes that very file, a resumed run
    reads it, and what no round took is deleted when the run ends or the folder is opened again."""
    folder = opened(tmp_path / "run")
    forms = {"w": (np.dtype(np.float32), (700, 1000)), "steps": (np.dtype(np.int64), ())}
    assert folder.checkpoints.store({"w": (np.dtype(np.float32), (10,))}) is None
    mean = folder.checkpoints.store(forms)
    assert mean is not None
    mean.flats[0][:], mean.flats[1][:] = np.arange(700_000), 5
    params = mean.finish(forms)
    (written,) = (tmp_path / "run" / "checkpoints").glob(".mean.*")
    inode = written.stat().st_ino
    folder.commit(Checkpoint(state=State(params=params, round=1)), row_of(1), RoundTable())
    final = tmp_path / "run" / "checkpoints" / "round-000001.safetensors"
    assert final.stat().st_ino == inode and not written.exists()
    assert load_file(final)["w"].tobytes() == np.arange(700_000, dtype=np.float32).tobytes()
    for number in range(2):
        unused = folder.checkpoints.store(forms)
        assert unused is not None and list(final.parent.glob(".mean.*"))
        if number:
            folder.finish(status="failed", cause="none", result=None, duration_s=1.0)
        else:
            folder = opened(tmp_path / "run")
        assert not list(final.parent.glob(".mean.*"))
        found = folder.resume()
        assert found is not None and found.state.params["steps"] == 5
        assert found.state.params["w"].tobytes() == params["w"].tobytes()
