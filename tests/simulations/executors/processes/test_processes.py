"""The processes executor: workers that die, a run that dies, and apps that do not load."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from meadow.apps.folder import App
from meadow.errors import AppError, RunError
from meadow.machine import shared_folder
from meadow.simulations.executors.contract import EventSink
from meadow.simulations.executors.processes.executor import ProcessesExecutor

from ..arena import CLIENTS, Arena, same_bits, values_of

WAIT_S = 60

Events = list[tuple[str, Mapping[str, Any]]]


def processes(
    arena: Arena, events: Events, *, combine: bool = True, workers: int = 2
) -> ProcessesExecutor:
    sink = EventSink(
        explain=arena.app.explain, event=lambda kind, detail: events.append((kind, detail))
    )
    return ProcessesExecutor(arena.app, arena.clients, workers=workers, combine=combine, sink=sink)


@pytest.fixture
def arena(app: App) -> Iterator[Arena]:
    """Clients that keep nothing yet."""
    made = Arena.of(app)
    yield made
    made.clients.close()


def kill_who_begins(begun: Path) -> Thread:
    """Kill the process that is held, once it has begun; it is not held again."""

    def kill() -> None:
        process_id = int(begun.read_text())
        (begun.parent / "held").unlink()
        os.kill(process_id, signal.SIGKILL)

    thread = Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.parametrize("combine", [True, False])
def test_a_killed_worker_changes_nothing(arena: Arena, begun: Path, combine: bool) -> None:
    """Its group runs again elsewhere: the same bits, the same states, and the loss is told."""
    events: Events = []
    executor = processes(arena, events, combine=combine)
    undisturbed = list(executor.execute(arena.broadcast("train")))
    (begun.parent / "held").write_text("5")
    killer = kill_who_begins(begun)
    replies = list(executor.execute(arena.broadcast("train")))
    killer.join(WAIT_S)
    assert same_bits(arena.aggregate(undisturbed), arena.aggregate(replies))
    assert arena.calls() == [2, 2, 2, 0, 2, 2, 2, 2, 2, 2, 2]
    assert values_of(replies).keys() == values_of(undisturbed).keys()
    ((kind, detail),) = events
    assert (kind, detail["cause"]) == ("worker_lost", "was killed by SIGKILL")
    assert 5 in detail["clients"] and detail["attempt"] == 1
    assert len(executor.pids) == 2
    executor.close()


def test_a_client_that_kills_its_worker_is_given_up(arena: Arena, begun: Path) -> None:
    """After three deaths its group answers with the cause, and keeps what it kept before."""
    events: Events = []
    executor = processes(arena, events)
    (begun.parent / "fatal").write_text("7")
    replies = list(executor.execute(arena.broadcast("train")))
    failed = {r.metadata.src_node_id: str(r.error.reason) for r in replies if r.has_error()}
    assert "3 times in a row, the worker was killed by SIGKILL" in failed[7]
    assert [detail["attempt"] for _, detail in events] == [1, 2, 3]
    lost = set(events[0][1]["clients"])
    assert failed.keys() == {4} | lost and len(lost) < CLIENTS / 2
    counted = [count for node, count in enumerate(arena.calls(), 1) if node not in {4} | lost]
    assert counted == [1] * (CLIENTS - 1 - len(lost))
    assert arena.calls()[6] == 0
    executor.close()


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of shared memory, so that what is left there is this test's."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setattr(shared_folder, "MEMORY", folder)
    return folder


def test_close_leaves_nothing(arena: Arena, begun: Path, memory: Path) -> None:
    """Neither processes, not even one that is at work, nor files; closing twice does no harm."""
    executor = processes(arena, [], combine=False)
    (begun.parent / "held").write_text("1")
    workers = [psutil.Process(pid) for pid in executor.pids]
    replies = executor.execute(arena.broadcast("train", [1, 2]))
    assert next(replies).metadata.src_node_id == 2
    assert list(memory.iterdir())
    executor.close()
    executor.close()
    assert not any(worker.is_running() for worker in workers)
    arena.clients.close()
    assert list(memory.iterdir()) == []


RUN = """
import sys
from pathlib import Path
from meadow.apps.folder import App
from meadow.machine import shared_folder
from meadow.simulations.executors.contract import EventSink
from meadow.simulations.executors.processes.executor import ProcessesExecutor
sys.path.insert(0, {tests!r})
from arena import Arena
shared_folder.MEMORY = Path({memory!r})
arena = Arena.of(App.load({app!r}))
executor = ProcessesExecutor(arena.app, arena.clients, workers=2, combine=True, sink=EventSink())
print(*executor.pids, flush=True)
list(executor.execute(arena.broadcast("train")))
"""


def test_workers_do_not_outlive_their_run(app: App, begun: Path, memory: Path) -> None:
    """Killed in the middle of a round, it leaves no process, and the next one sweeps its files."""
    (begun.parent / "held").write_text("5")
    tests = str(Path(__file__).parents[1])
    code = RUN.format(tests=tests, app=str(app.folder), memory=str(memory))
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    with run.stdout:
        workers = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
    assert len(workers) == 2
    assert int(begun.read_text()) in [worker.pid for worker in workers]
    run.kill()
    run.wait(WAIT_S)
    assert psutil.wait_procs(workers, timeout=WAIT_S)[1] == []
    assert list(memory.iterdir())
    shared_folder.SharedFolder().close()
    assert list(memory.iterdir()) == []


def test_ctrl_c_is_for_the_run_alone(arena: Arena) -> None:
    """Workers take no notice of it, and are in no process group of a terminal."""
    executor = processes(arena, [])
    pids = executor.pids
    list(executor.execute(arena.broadcast("evaluate")))
    for pid in pids:
        assert os.getpgid(pid) == pid
        os.kill(pid, signal.SIGINT)
    assert len(list(executor.execute(arena.broadcast("evaluate")))) == CLIENTS
    assert executor.pids == pids
    executor.close()


def test_an_app_that_does_not_load_is_said_so(app: App, tmp_path: Path) -> None:
    """The worker's sentence reaches the run, with the missing module's name."""
    arena = Arena.of(app)
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "pyproject.toml").write_text((app.folder / "pyproject.toml").read_text())
    (folder / "app.py").write_text("import no_such_module")
    broken = Arena(app=App.load(folder), clients=arena.clients, params=arena.params)
    executor = processes(broken, [], workers=1)
    with pytest.raises(AppError, match="'no_such_module' installed, or misspelt"):
        list(executor.execute(arena.broadcast("train")))
    executor.close()
    (folder / "app.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    changed = processes(broken, [], workers=1)
    with pytest.raises(AppError, match="was changed during the run"):
        list(changed.execute(arena.broadcast("train")))
    changed.close()
    fatal = Arena(app=App.load(folder), clients=arena.clients, params=arena.params)
    executor = processes(fatal, [], workers=1)
    with pytest.raises(RunError, match="3 times in a row, one was killed by SIGKILL while it load"):
        list(executor.execute(arena.broadcast("train")))
    executor.close()
    arena.clients.close()
