"""Following a run folder: every round once, whatever the tracker does."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from meadow.config.sections.tracking import TrackingConfig
from meadow.errors import ConfigError, TrackingError
from meadow.tracking import follower, packages
from meadow.tracking.follower import RunFollower, copy_run, trackers_of
from meadow.tracking.tracker import Scalars


class Store:
    """A tracker in memory, which fails as often as it is told."""

    name = "a store"

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.settings: Mapping[str, str] = {}
        self.rounds: dict[int, Mapping[str, float]] = {}
        self.ended: tuple[str, list[str]] | None = None
        self.taken = threading.Event()

    def begin(self, settings: Mapping[str, str]) -> int:
        self.settings = settings
        return max(self.rounds, default=0)

    def add(self, rounds: Sequence[Scalars]) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no route")
        for number, values in rounds:
            assert number not in self.rounds, "stored twice"
            self.rounds[number] = values
        self.taken.set()

    def end(self, status: str, files: Sequence[Path]) -> None:
        self.ended = status, [file.name for file in files]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder before its first round."""
    (tmp_path / "meadow.toml").write_text('[run]\nrounds = 9\n[tracking]\nwandb = "offline"\n')
    return tmp_path


def write(folder: Path, *numbers: int) -> None:
    """Write metrics.jsonl with these rounds."""
    rows = (
        {"round": number, "train": {"loss": 1 / number, "best": None}, "privacy": {"epsilon": 0.5}}
        for number in numbers
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def follow(folder: Path, store: Store, events: list[Mapping[str, Any]]) -> RunFollower:
    """Return a follower that notes its events."""
    return RunFollower(folder, [store], on_event=lambda kind, detail: events.append(detail))


def test_rounds_are_stored_while_the_run_goes_on(folder: Path) -> None:
    """Numbers of the server, clients and privacy by name; what is no number is left out."""
    store, events = Store(), []
    following = follow(folder, store, events)
    write(folder, 1, 2)
    following.row_added()
    assert store.taken.wait(60)
    (folder / "summary.json").write_text("{}")
    following.end("finished")
    assert store.rounds[2] == {"train/loss": 0.5, "epsilon": 0.5}
    assert store.settings == {"run.rounds": "9"}, "not those of tracking itself"
    assert store.ended is not None
    assert store.ended[0] == "finished"
    assert {"meadow.toml", "summary.json"} <= set(store.ended[1])
    assert not events


def test_a_round_that_is_repeated_after_a_crash_is_stored_once(folder: Path) -> None:
    """A resumed run cuts metrics.jsonl back to its checkpoint, and writes the same rounds again."""
    store, events = Store(), []
    write(folder, 1, 2, 3, 4)
    follow(folder, store, events).end("failed")
    write(folder, 1, 2)
    following = follow(folder, store, events)
    following.row_added()
    write(folder, 1, 2, 3, 4, 5)
    following.end("finished")
    assert sorted(store.rounds) == [1, 2, 3, 4, 5]


def test_rows_cut_back_under_the_follower(folder: Path) -> None:
    """The follower has begun when the run is cut back."""
    store, events = Store(), []
    write(folder, 1, 2, 3)
    following = follow(folder, store, events)
    following.row_added()
    assert store.taken.wait(60)
    write(folder, 1)
    following.row_added()
    write(folder, 1, 2, 3, 4)
    following.end("finished")
    assert sorted(store.rounds) == [1, 2, 3, 4]


def test_a_row_under_way_is_left_for_later(folder: Path) -> None:
    """The end of a line says that it is whole."""
    store, events = Store(), []
    write(folder, 1, 2)
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text[:-20])
    following = follow(folder, store, events)
    following.row_added()
    assert store.taken.wait(60)
    assert sorted(store.rounds) == [1]
    (folder / "metrics.jsonl").write_text(text)
    following.end("finished")
    assert sorted(store.rounds) == [1, 2]


def test_a_tracker_that_failed_gets_what_it_missed(folder: Path) -> None:
    """The next row begins another attempt; the event says what happened, and what to do."""
    store, events = Store(failures=1), []
    write(folder, 1)
    following = follow(folder, store, events)
    following.row_added()
    while not events:
        following.row_added()
    assert events[0]["tracker"] == "a store"
    assert "no route" in events[0]["reason"]
    assert events[0]["remedy"] == f"meadow track {folder}"
    following.end("finished")
    assert sorted(store.rounds) == [1]
    assert store.ended is not None


def test_a_tracker_that_never_answers_delays_the_end_by_a_bound(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is given up, with an event."""
    monkeypatch.setattr(follower, "END_WAIT_S", 0.05)
    free = threading.Event()
    store, events = Store(), []
    store.begin = lambda settings: free.wait(60) and 0  # type: ignore[method-assign]
    follow(folder, store, events).end("finished")
    free.set()
    assert "has not taken everything in 0.05 s" in events[0]["reason"]


def test_copying_says_what_failed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`meadow track` fails with the tracker's reason."""
    write(folder, 1)
    monkeypatch.setattr(follower, "trackers_of", lambda config, folder: [Store(failures=9)])
    with pytest.raises(TrackingError, match="a store failed: ConnectionError: no route"):
        copy_run(folder, TrackingConfig(wandb="offline"))


def test_a_package_that_is_not_installed_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the run begins, with what to install."""
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"MLflow needs mlflow.*pip install 'meadow-fl\[tracking\]'"
    ):
        trackers_of(TrackingConfig(mlflow="sqlite:///x.db"), folder)
