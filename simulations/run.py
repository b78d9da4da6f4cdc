"""`simulate`: a run of many clients in this process, with the same app and the same numbers."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from ..apps.flower_app import Scalar
from ..apps.folder import App
from ..errors import ConfigError
from ..flower.messages import identify_process
from ..run.execute import execute, resolved_toml, rounds_of, run_config_of
from ..run.run_folder import TRACEBACKS, RunFolder
from ..strategies.algorithms.algorithm import Algorithm
from ..transport.durable import write_file
from .executors.adversarial import with_adversaries
from .executors.apps import client_app_of
from .executors.choice import ExecutorPlan
from .executors.contract import EventSink, Executor
from .grids.simulation_grid import SimulationGrid
from .grids.virtual_grid import VirtualGrid, devices_of
from .population.clients import SimulatedClients
from .population.tags import tagged_of

__all__ = ["ORIGIN", "default_folder", "resume", "simulate", "simulate_app"]

OnEvent = Callable[[str, Mapping[str, Any]], None]
FLOWER_CLIENTS = 10
RUN_ID = 1
PLACES = frozenset({"site-index", "site-count", "partition-id", "num-partitions"})
"""Entries of a client's Context on its place among the others."""
DURABLE_PAUSE_S = 1.0
"""What an interrupted simulation repeats at most, in seconds of work."""
ORIGIN = "origin.json"
"""In the run folder: which app it is of, under which settings, so that the run can go on."""


def simulate(
    app_folder: Path,
    *,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    clients: int | None = None,
    executor: str | None = None,
    node_config: Mapping[str, Scalar] | None = None,
    on_event: OnEvent = lambda kind, detail: None,
) -> dict[str, Any]:
    """Run an app, Meadow's or plain Flower's, with simulated clients; returns the summary.

    The run folder `out` (by default `default_folder`) is new or empty. `node_config` has further
    entries for every client's Context. A Flower app's federation sets the number of its clients
    where `clients` is absent.

    Raises:
        AppError, ConfigError: the app or its configuration cannot be used.
    """
    if clients is not None and (Path(app_folder) / "meadow.toml").is_file():
        overrides = [*overrides, f"simulation.clients={clients}"]
    app = App.load(app_folder, overrides=overrides)
    return simulate_app(
        app,
        out=out,
        clients=clients,
        executor=executor,
        node_config=node_config,
        on_event=on_event,
    )


def simulate_app(
    app: App,
    *,
    out: Path | None = None,
    clients: int | None = None,
    executor: str | None = None,
    node_config: Mapping[str, Scalar] | None = None,
    on_event: OnEvent = lambda kind, detail: None,
) -> dict[str, Any]:
    """Run an app that was loaded; arguments, result and errors as of `simulate`."""
    _refuse_places(node_config or {})
    app = app.with_own_code()
    plan = ExecutorPlan.of(app, executor)
    client_app_of(app)  # before there is a folder: an app that does not load leaves none
    tagged_of(app.config)
    devices_of(app)  # and neither do files that cannot be read
    folder = Path(out) if out is not None else default_folder(app.name)
    _make_empty(folder)
    count = clients or clients_of(app)
    identify_process(run_id=RUN_ID, node_id=0)
    plan, reason = plan.settled(
        app,
        count,
        trying=lambda candidate, tried: on_event(
            "executor_trial", {"executor": str(candidate), "clients": tried}
        ),
    )
    origin = {
        "app": str(app.folder) if app.task is None else None,
        "sha256": app.sha256,
        "settings": list(app.settings),
        "algorithm": _python_algorithm(app),
        "clients": count,
        "executor": plan.name,
        "threads": plan.threads,
        "workers": plan.workers,
        "node_config": dict(node_config or {}),
    }
    write_file(folder / ORIGIN, json.dumps(origin, indent=1).encode())
    return _run(app, plan, folder, origin, on_event=on_event, reason=reason)


def clients_of(app: App) -> int:
    """Return with how many clients an app is simulated by default."""
    if app.config is not None:
        return app.config.simulation.clients
    return (app.flower.supernodes if app.flower else None) or FLOWER_CLIENTS


def _refuse_places(node_config: Mapping[str, Scalar]) -> None:
    if places := PLACES.intersection(node_config):
        raise ConfigError(
            f"--node-config cannot set {', '.join(sorted(places))}: every simulated client has its "
            "own; --clients says how many there are"
        )


def resume(
    folder: Path,
    *,
    app: App | None = None,
    algorithm: Algorithm | None = None,
    on_event: OnEvent = lambda kind, detail: None,
) -> dict[str, Any]:
    """Go on with an interrupted simulation from its last durable round.

    `app` is needed where the run's task was made in Python, and is refused elsewhere; `algorithm` is
    needed where an app folder was simulated with one that was made in Python.

    Raises:
        ConfigError: the folder is none of a simulation, or its app has changed since.
    """
    try:
        origin = json.loads((folder / ORIGIN).read_text())
        if (origin["app"] is None) != (app is not None):
            raise ConfigError(
                f"{folder} cannot be resumed so: its task was made in Python; use "
                "meadow.resume(folder, task=...)"
                if app is None
                else f"{folder} cannot be resumed with a task: its app is {origin['app']}"
            )
        if app is None:
            app = App.load(Path(origin["app"]), overrides=origin["settings"], environ={})
            app = _with_python_algorithm(app, origin.get("algorithm"), algorithm, folder)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{folder} cannot be resumed: it is not the folder of a simulation ({error})"
        ) from None
    if app.sha256 != origin["sha256"]:
        raise ConfigError(
            f"{folder} cannot be resumed: the app {app.folder} was changed since; "
            "undo the change, or simulate anew"
        )
    app = app.with_own_code()
    plan = ExecutorPlan.of(app, origin["executor"])
    threads, workers = origin.get("threads", 1), origin.get("workers", plan.workers)
    plan = replace(plan, threads=threads, workers=workers)
    return _run(app, plan, folder, origin, on_event=on_event)


def _python_algorithm(app: App) -> str | None:
    """Return the name of an algorithm that no file names."""
    config = app.config
    if app.task is not None or config is None or config.algorithm is None:
        return None
    return None if config.strategy.is_own else str(config.algorithm.name)


def _with_python_algorithm(
    app: App, name: str | None, algorithm: Algorithm | None, folder: Path
) -> App:
    if name is None or app.config is None:
        return app
    if algorithm is None or algorithm.name != name:
        raise ConfigError(
            f"{folder} cannot be resumed so: its algorithm {name!r} was made in Python; use "
            "meadow.resume(folder, strategy=...) with the same one"
        )
    return replace(app, config=replace(app.config, algorithm=algorithm))


def _make_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = next(folder.iterdir(), None)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be the run's folder: {error.strerror}") from None
    if found is not None:
        raise ConfigError(
            f"{folder} is not empty; continue that run with --resume {folder}, or give another "
            "--out"
        )


def default_folder(name: str) -> Path:
    """Return runs/NAME-DATE-TIME below the current folder."""
    return Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _run(
    app: App,
    plan: ExecutorPlan,
    folder: Path,
    origin: Mapping[str, Any],
    *,
    on_event: OnEvent,
    reason: str = "",
) -> dict[str, Any]:
    identify_process(run_id=RUN_ID, node_id=0, quiet=app.flower is None)
    run_folder = RunFolder(
        folder.absolute(),
        config_toml=resolved_toml(app),
        on_event=on_event,
        pause_s=DURABLE_PAUSE_S,
        about=lambda client: {"log": str(folder / TRACEBACKS)},
    )

    def emit(node_id: int, text: str) -> None:
        run_folder.traceback(text, node_id)

    population = SimulatedClients(
        origin["clients"],
        run_id=RUN_ID,
        run_config=run_config_of(app),
        node_config=origin.get("node_config"),
        states_file=run_folder.folder / "checkpoints" / "clients.sqlite",
    )
    run_folder.checkpoints.keep_client_states(population.save, population.load)
    sink = EventSink(traceback=emit, explain=app.explain, event=run_folder.event)
    executor = with_adversaries(plan.make(app, population, sink=sink), app.config)
    grid = _grid_of(app, executor, population)
    on_event(
        "ready", {"rounds": rounds_of(app), "folder": str(folder), "clients": population.count}
    )
    if reason:
        chosen = {"executor": plan.name, "threads": plan.threads, "workers": plan.workers}
        chosen |= {"reason": reason}
        on_event("executor_chosen", chosen)
    try:
        with _interruptible(grid, on_event):
            return execute(app, grid, run_folder, run_id=RUN_ID)
    finally:
        executor.close()
        population.close()


def _grid_of(app: App, executor: Executor, population: SimulatedClients) -> SimulationGrid:
    devices = devices_of(app)
    if devices is None or app.config is None:
        return SimulationGrid(executor, population, tagged=tagged_of(app.config))
    return VirtualGrid.of(app.config, devices, executor, population)


@contextmanager
def _interruptible(grid: SimulationGrid, on_event: OnEvent) -> Iterator[None]:
    """Let the first Ctrl-C end the run after the round under way, and the second at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if grid.is_stopping():
            raise KeyboardInterrupt
        grid.stop()
        with suppress(RuntimeError):  # in the middle of another event: print() is not reentrant
            on_event("stopping", {"after": "this round; press Ctrl-C again to stop at once"})

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
