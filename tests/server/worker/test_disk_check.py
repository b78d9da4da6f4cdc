"""A run says what disk it will take before it takes it, and does not begin where that is not there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meadow.config.load import load_config
from meadow.errors import StoreError
from meadow.reports.sentences import sentence_of
from meadow.run import disk_needs
from meadow.server.daemon.server_dir import ServerFolder
from meadow.server.worker import disk_check
from meadow.server.worker.disk_check import DiskCheck
from meadow.strategies.algorithms.algorithm import State
from meadow.transport import fleet_pb2 as pb

MB = 1_000_000
PARAMS = {"w": np.zeros(250_000, np.float32)}


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """The folder of a server with a run, and the events that will be told; 1 MB is told of."""
    monkeypatch.setattr(disk_check, "SAID_BYTES_MIN", MB)
    monkeypatch.setattr(disk_needs, "BESIDE_BYTES", 0)
    ServerFolder.create(tmp_path / "server", host="localhost", now=datetime.now(UTC))
    (tmp_path / "server" / "runs" / "3").mkdir(parents=True)
    (tmp_path / "server" / "spool" / "3" / "down").mkdir(parents=True)
    (tmp_path / "meadow.toml").write_text("[run]\nrounds = 2\nmin_clients = 2\n")
    return []


def check_of(
    folder: Path, events: list[Mapping[str, Any]], *, free: int, relays: Mapping[int, int] = {}
) -> DiskCheck:
    server = folder / "server"
    start = pb.WorkerStart(
        run_id=3, run_dir=str(server / "runs" / "3"), spool_dir=str(server / "spool" / "3" / "down")
    )

    def emit(kind: str, detail: Mapping[str, Any]) -> None:
        assert kind == "disk_needed"
        events.append(detail)

    return DiskCheck(
        load_config(folder / "meadow.toml", overrides=[], environ={}),
        start,
        relay_of=lambda client: relays.get(client, 0),
        emit=emit,
        free_bytes=lambda folder: free,
    )


def test_it_is_said_once(tmp_path: Path, events: list[Mapping[str, Any]]) -> None:
    """A larger cohort is said again, the same or a smaller one is not; people read a sentence."""
    state = State(params=PARAMS)
    check = check_of(tmp_path, events, free=100 * MB)
    for cohort in ([1, 2], [1, 2], [3], [1, 2, 3]):
        check(state, PARAMS, cohort)
    assert events == [
        {"server_bytes": 5 * MB, "client_bytes": 6 * MB, "free_bytes": 100 * MB},
        {"server_bytes": 6 * MB, "client_bytes": 6 * MB, "free_bytes": 100 * MB},
    ]
    assert sentence_of("disk_needed", events[0]) == (
        "the run takes up to 5.0 MB of the server's disk, which has 100.0 MB free, and 6.0 MB of a client's"
    )
    small = {"w": np.zeros(10, np.float32)}
    check_of(tmp_path, events, free=0)(State(params=small), small, [1, 2])
    assert len(events) == 2, "so little is not worth a word"


def test_clients_behind_a_relay_are_one_reply(
    tmp_path: Path, events: list[Mapping[str, Any]]
) -> None:
    """A relay's float64 sum counts twice, however many clients it stands for."""
    relays = dict.fromkeys(range(10, 500), 9)
    check = check_of(tmp_path, events, free=100 * MB, relays=relays)
    check(State(params=PARAMS), PARAMS, [1, *relays])
    assert events[0]["server_bytes"] == (3 + 1 + 2) * MB


def test_too_little_is_refused(tmp_path: Path, events: list[Mapping[str, Any]]) -> None:
    """The cause has what is needed, what is there, and what to do; what the run has already is not asked again,
    under however many names."""
    state = State(params=PARAMS)
    with pytest.raises(StoreError) as refused:
        check_of(tmp_path, events, free=5 * MB - 50_000)(state, PARAMS, [1, 2])
    said = str(refused.value)
    assert "2 clients with a model of this size take up to 5.0 MB" in said
    assert (
        "5.0 MB more than" in said
        and "5.0 MB are free at" in said
        and "`meadow run resume 3`" in said
    )
    held = tmp_path / "server" / "runs" / "3" / "first"
    held.write_bytes(bytes(2 * MB))
    (tmp_path / "server" / "spool" / "3" / "down" / "1").hardlink_to(held)
    check_of(tmp_path, events, free=3 * MB)(state, PARAMS, [1, 2])
    with pytest.raises(StoreError, match=r"3.0 MB more than the run has now, and 2.9 MB are free"):
        check_of(tmp_path, events, free=2_900_000)(state, PARAMS, [1, 2])


def test_the_quota_bounds_a_run_that_begins(
    tmp_path: Path, events: list[Mapping[str, Any]]
) -> None:
    """It is refused if it would outgrow storage.bytes_max; one that goes on is not."""
    file = tmp_path / "server" / "server.toml"
    file.write_text(file.read_text() + "\n[storage]\nbytes_max = 5_000_000\n")
    (tmp_path / "server" / "other").write_bytes(bytes(MB))
    check = check_of(tmp_path, events, free=100 * MB)
    with pytest.raises(
        StoreError, match=r"of its quota of 5.0 MB, storage.bytes_max in server.toml"
    ):
        check(State(params=PARAMS), PARAMS, [1, 2])
    check_of(tmp_path, events, free=100 * MB)(State(params=PARAMS, round=4), PARAMS, [1, 2])


def test_an_app_of_flowers_is_not_asked(tmp_path: Path, events: list[Mapping[str, Any]]) -> None:
    """What it keeps is not known."""
    check = check_of(tmp_path, events, free=0)
    check._config = None
    check(State(params=PARAMS), PARAMS, [1, 2])
    assert not events
