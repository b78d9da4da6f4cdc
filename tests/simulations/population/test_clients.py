"""`SimulatedClients`: states of many clients, on disk, that a crash cannot tear apart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from meadow.errors import ProtocolError, StoreError
from meadow.simulations.population import state_store
from meadow.simulations.population.clients import SimulatedClients
from meadow.simulations.population.state_bytes import pack_state, unpack_state
from meadow.simulations.population.state_store import StateStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a run keeps its clients' states."""
    return tmp_path / "clients.sqlite"


@pytest.fixture
def clients(path: Path) -> Iterator[SimulatedClients]:
    """Five clients of a run with a folder."""
    made = clients_of(path)
    yield made
    made.close()


def clients_of(path: Path | None) -> SimulatedClients:
    return SimulatedClients(5, run_id=1, run_config={}, states_file=path)


def state(value: float) -> RecordDict:
    memory = ArrayRecord([np.full((2, 3), value, np.float32), np.arange(4)])
    plain = {"calls": MetricRecord({"count": int(value)}), "name": ConfigRecord({"on": True})}
    return RecordDict({"memory": memory, **plain})


def value_of(clients: SimulatedClients, node_id: int) -> float | None:
    """Return the number that `state` made a client's state of, None if it has none."""
    found = clients.context_of(node_id).state
    if not found:
        return None
    first, second = found.array_records["memory"].to_numpy_ndarrays()
    assert first.shape == (2, 3) and second.tolist() == [0, 1, 2, 3]
    assert found.config_records["name"]["on"] is True
    assert found.metric_records["calls"]["count"] == int(first[0, 0])
    return float(first[0, 0])


def test_a_context_says_who_it_is(clients: SimulatedClients) -> None:
    """By Flower's names and by Meadow's; there are no others."""
    context = clients.context_of(3)
    assert (context.run_id, context.node_id) == (1, 3)
    assert context.node_config == {
        "site-index": 2, "site-count": 5, "partition-id": 2, "num-partitions": 5,
    }  # fmt: skip
    for node_id in (0, 6):
        with pytest.raises(ValueError, match=f"no client {node_id}; there are 1 to 5"):
            clients.context_of(node_id)


def test_a_state_is_kept_and_handed_out_as_a_copy(clients: SimulatedClients) -> None:
    """What is done to a Context does not last by itself."""
    clients.keep_state(2, state(7))
    clients.context_of(2).state["calls"]["count"] = 99  # type: ignore[index]
    assert value_of(clients, 2) == 7
    assert value_of(clients, 1) is None


def test_clients_that_keep_nothing_cost_no_file(clients: SimulatedClients, path: Path) -> None:
    """An empty state of a client that had none is none; one that it emptied is kept."""
    clients.keep_state(1, RecordDict())
    assert clients.save() == {} and not path.exists()
    clients.load({})
    assert not path.exists()
    clients.keep_state(1, state(1))
    clients.keep_state(1, RecordDict())
    assert value_of(clients, 1) is None
    assert clients.save() == {"version": "1"} and path.exists()


def test_a_run_goes_on_from_what_was_saved(clients: SimulatedClients, path: Path) -> None:
    """In another process, and however many rounds it was ahead."""
    clients.keep_state(1, state(10))
    clients.keep_state(2, state(20))
    first = clients.save()
    clients.keep_state(1, state(11))
    second = clients.save()
    clients.keep_state(2, state(22))
    clients.keep_state(3, state(32))
    clients.close()
    for saved, expected in ((second, [11, 20, None]), (first, [10, 20, None])):
        again = clients_of(path)
        again.load(saved)
        assert [value_of(again, node) for node in (1, 2, 3)] == expected
        again.close()


def test_what_a_crash_left_is_not_there(clients: SimulatedClients, path: Path) -> None:
    """A run that goes on without a checkpoint, or from one before any state, begins with none."""
    clients.keep_state(1, state(10))
    clients.save()
    clients.close()
    anew = clients_of(path)
    assert value_of(anew, 1) is None
    anew.keep_state(2, state(5))
    assert [value_of(anew, node) for node in (1, 2)] == [None, 5]
    anew.save()
    anew.load({})
    assert value_of(anew, 2) is None
    anew.close()


def test_the_last_two_checkpoints_stay_loadable(clients: SimulatedClients, path: Path) -> None:
    """While the next one is being saved; older rows are gone, so the file does not grow."""
    saved = []
    for number in range(1, 8):
        clients.keep_state(1, state(number))
        if number % 3 == 0:
            clients.keep_state(2, state(number))
        saved.append(clients.save())
    store = StateStore(path)
    store.load(saved[-1])
    (rows,) = store._db.execute("SELECT count(*) FROM states").fetchone()  # type: ignore[union-attr]
    assert rows <= 3 + 2
    store.close()
    for number in (7, 6, 5):
        clients.load(saved[number - 1])
        assert value_of(clients, 1) == number
        assert value_of(clients, 2) == number // 3 * 3
    clients.keep_state(1, state(60))
    assert clients.save() == {"version": "6"}
    assert value_of(clients, 1) == 60


def test_states_beyond_the_buffer_are_on_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds a bounded part; what was spilled but not saved does not survive."""
    store = StateStore(path, buffer_bytes_max=10_000)
    for node_id in range(1, 201):
        store.put(node_id, bytes([node_id]) * 1000)
        assert len(store._buffer) <= 9
    assert all(store.get(node_id) == bytes([node_id]) * 1000 for node_id in range(1, 201))
    store.put(3, b"new")
    assert store.get(3) == b"new" and store.get(999) is None
    saved = store.save()
    store.put(3, b"newer" * 4000)
    assert store.get(3) == b"newer" * 4000
    store.close()
    again = StateStore(path)
    again.load(saved)
    assert again.get(3) == b"new" and again.get(200) == bytes([200]) * 1000
    again.close()


def test_a_save_costs_what_has_changed(path: Path) -> None:
    """The steps that the database makes do not grow with the population."""
    steps: list[int] = []
    for population in (100, 10_000):
        store = StateStore(path.with_name(f"{population}.sqlite"))
        for node_id in range(population):
            store.put(node_id, b"state")
        for _ in range(3):
            store.save()
        counted = [0]
        assert store._db is not None
        store._db.set_progress_handler(
            lambda counted=counted: counted.__setitem__(0, counted[0] + 1), 10
        )
        for node_id in range(50):
            store.put(node_id, b"changed")
        store.save()
        steps.append(counted[0])
        store.close()
    assert 0 < steps[1] < 1.5 * steps[0]


WRITER = """
import os, sys
from pathlib import Path
from meadow.simulations.population.state_store import StateStore
store = StateStore(Path(sys.argv[1]), buffer_bytes_max=2000)
number = 0
while True:
    number += 1
    for node_id in range(20):
        store.put(node_id, b"%d-" % number * 50)
    saved = store.save()["version"]
    assert saved == str(number)
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_the_last_saves(path: Path) -> None:
    """Whatever it was doing: each state is that of the checkpoint, not older or newer."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    with writer.stdout:
        for _ in range(30):
            said = int(writer.stdout.readline())
        writer.kill()
        left = writer.stdout.read().split()
    writer.wait(60)
    last = int(left[-1]) if left else said
    for number in (last, last - 1):
        store = StateStore(path)
        store.load({"version": str(number)})
        assert {store.get(node) for node in range(20)} == {b"%d-" % number * 50}
        store.close()


def test_without_a_run_folder_the_file_is_of_this_process(tmp_path: Path) -> None:
    """It works the same, and is gone afterwards."""
    clients = clients_of(None)
    clients.keep_state(1, state(3))
    saved = clients.save()
    clients.keep_state(1, state(4))
    clients.load(saved)
    assert value_of(clients, 1) == 3
    clients.close()
    clients.close()


def test_a_missing_or_damaged_file_is_said_so(clients: SimulatedClients, path: Path) -> None:
    """The error names it."""
    with pytest.raises(StoreError, match=r"clients.sqlite is missing"):
        clients.load({"version": "4"})
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match=r"clients.sqlite: file is not a database"):
        clients.load({"version": "4"})


def test_packed_states_are_checked(tmp_path: Path) -> None:
    """Bytes that were cut or changed are refused, and no file stays behind."""
    packed = pack_state(state(1), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert unpack_state(packed, tmp_path).metric_records["calls"]["count"] == 1
    for damaged in (b"", packed[:3], packed[:-1], packed + b"x", b"\x00\x00\x00\x05hello"):
        with pytest.raises((ProtocolError, StoreError)):
            unpack_state(damaged, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert state_store.BUFFER_BYTES_MAX <= 64 << 20
