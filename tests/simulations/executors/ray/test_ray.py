"""The Ray executor beyond the contract: lost actors, other machines, no Ray."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest

from meadow.apps.folder import App, pack
from meadow.errors import AppError, ConfigError
from meadow.simulations.executors.contract import EventSink
from meadow.simulations.executors.processes.group_executor import settings_of
from meadow.simulations.executors.ray.actor import GroupActor
from meadow.simulations.executors.ray.executor import RayExecutor, _connect

from ..arena import Arena, same_bits

WAIT_S = 60


@pytest.fixture
def arena(app: App) -> Iterator[Arena]:
    """Clients that keep nothing yet."""
    made = Arena.of(app)
    yield made
    made.clients.close()


def ray_of(arena: Arena, sink: EventSink | None = None, *, workers: int = 2) -> RayExecutor:
    return RayExecutor(
        arena.app,
        arena.clients,
        address=None,
        workers=workers,
        combine=True,
        sink=sink or EventSink(),
    )


@pytest.mark.usefixtures("ray_cluster")
def test_a_lost_actor_changes_nothing(arena: Arena, begun: Path) -> None:
    """Its group runs again on a new actor: the same bits, and the loss is told."""
    events: list[tuple[str, Mapping[str, Any]]] = []
    sink = EventSink(event=lambda kind, detail: events.append((kind, detail)))
    executor = ray_of(arena, sink)
    undisturbed = arena.aggregate(list(executor.execute(arena.broadcast("train"))))
    (begun.parent / "held").write_text("5")

    def kill() -> None:
        process_id = int(begun.read_text())
        (begun.parent / "held").unlink()
        os.kill(process_id, signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    disturbed = arena.aggregate(list(executor.execute(arena.broadcast("train"))))
    killer.join(WAIT_S)
    executor.close()
    assert same_bits(undisturbed, disturbed)
    assert [kind for kind, _ in events] == ["worker_lost"]
    assert 5 in events[0][1]["clients"]


@pytest.mark.usefixtures("ray_cluster")
def test_the_last_actor_is_replaced_late_in_a_run(arena: Arena, begun: Path) -> None:
    """A new one has as long to start as the first had, however long ago the run began."""
    executor = ray_of(arena, workers=1)
    list(executor.execute(arena.broadcast("train")))
    executor._actors._waits_since_s = -1e9
    (begun.parent / "held").write_text("5")

    def kill() -> None:
        process_id = int(begun.read_text())
        (begun.parent / "held").unlink()
        os.kill(process_id, signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    try:
        assert len(list(executor.execute(arena.broadcast("train")))) > 0
    finally:
        killer.join(WAIT_S)
        executor.close()


@pytest.mark.usefixtures("ray_cluster")
def test_an_app_that_does_not_load_is_said_so(arena: Arena, tmp_path: Path) -> None:
    """The actor's sentence reaches the run."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "pyproject.toml").write_text((arena.app.folder / "pyproject.toml").read_text())
    (folder / "app.py").write_text("import no_such_module")
    broken = Arena(app=App.load(folder), clients=arena.clients, params=arena.params)
    executor = ray_of(broken)
    with pytest.raises(AppError, match="'no_such_module' installed, or misspelt"):
        list(executor.execute(arena.broadcast("train")))
    executor.close()


def test_another_machine_unpacks_the_app(app: App, arena: Arena, tmp_path: Path) -> None:
    """Where its folder is not there, or is another version, the archive's content is loaded."""
    archive = pack(app.folder)
    for elsewhere in (tmp_path / "nowhere", tmp_path):
        settings = settings_of(app, arena.clients, "sequential").to_json()
        actor = GroupActor({**settings, "folder": str(elsewhere)}, archive)
        assert actor.load() == ("", os.getpid())
        actor.close()
    actor = GroupActor({**settings, "folder": str(tmp_path), "sha256": "0" * 64}, archive)
    problem, _ = actor.load()
    assert "was changed during the run" in problem
    actor.close()


def test_a_cluster_that_is_not_there_is_said_so(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, by its address."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConfigError, match=f"no Ray cluster answers at '127.0.0.1:{port}'"):
        RayExecutor(
            arena.app,
            arena.clients,
            address=f"127.0.0.1:{port}",
            workers=None,
            combine=True,
            sink=EventSink(),
        )


@pytest.mark.parametrize(("late", "begun"), [(2, 3), (3, 3)])
def test_a_cluster_that_starts_late_is_begun_anew(late: int, begun: int) -> None:
    """On a busy machine: Ray's own processes have 30 s, and it says so with a RuntimeError."""
    calls: list[str] = []

    def init(**_: object) -> None:
        calls.append("init")
        if calls.count("init") <= late:
            raise RuntimeError("Timed out waiting for file gcs_server_port")

    ray = ModuleType("ray")
    vars(ray).update(init=init, shutdown=lambda: calls.append("shutdown"))
    with nullcontext() if late < begun else pytest.raises(ConfigError, match="Timed out"):
        _connect(ray, None, workers=2)
    assert calls == (["init", "shutdown"] * begun)[: late + begun]


def test_without_ray_the_remedy_is_named(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra, and there is another executor."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'pip install "meadow-fl\[simulation\]"'):
        ray_of(arena)
