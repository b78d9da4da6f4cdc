"""`simulate` and `resume`: a federation of many clients on this machine, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..apps.folder import App
from ..config.load import FILE_NAME, load_config
from ..config.sections.compression import CompressionConfig
from ..config.sections.privacy import PrivacyConfig
from ..config.sections.robust import RobustConfig
from ..config.sections.rounds import RoundsConfig
from ..config.sections.run import EvaluationConfig, RunConfig
from ..config.sections.selection import SelectionConfig
from ..config.sections.simulation import SimulationConfig
from ..config.sections.tracking import TrackingConfig
from ..config.sections.training import TrainingConfig
from ..errors import ConfigError, RunError
from ..simulations import run as simulations
from ..strategies.algorithms.algorithm import Algorithm
from ..strategies.algorithms.asynchrony import Asynchrony
from ..task import Task
from .display import Progress, shown
from .run import Run
from .settings import config_of, overrides_of, tables_of

__all__ = ["resume", "simulate"]

Table = Mapping[str, Any]
OnEvent = Callable[[str, Mapping[str, Any]], None]


def simulate(
    app: Task | Path | str,
    *,
    strategy: str | Table | Algorithm | Asynchrony | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    cohort: float | None = None,
    seed: int | None = None,
    executor: str | None = None,
    training: TrainingConfig | Table | None = None,
    evaluation: EvaluationConfig | Table | None = None,
    selection: SelectionConfig | Table | None = None,
    asynchronous: RoundsConfig | Table | None = None,
    robust: RobustConfig | Table | None = None,
    compression: CompressionConfig | Table | None = None,
    privacy: PrivacyConfig | Table | None = None,
    simulation: SimulationConfig | Table | None = None,
    tracking: TrackingConfig | Table | None = None,
    run: RunConfig | Table | None = None,
    settings: Table | None = None,
    out: Path | str | None = None,
    progress: Progress = None,
    on_event: OnEvent | None = None,
) -> Run:
    """Train a task, or an app folder, with simulated clients; returns the finished run.

    Settings have the names and the checks of meadow.toml (docs/configuration.md). A section is a
    table (`training={"epochs": 5}`) or an object (`training=meadow.Training(epochs=5)`); any key
    can also be given in `settings`, dotted: `{"run.early_stopping.patience": 3}`. What is given
    here goes over an app folder's own meadow.toml and the environment.

    Args:
        app: a `Task` that was made in Python, or the folder of an app.
        strategy: a name ("scaffold", or "module:builder" of an algorithm of your own), a table of
            [strategy], or what a builder returns (`meadow.fedavg(server_optimizer="adam")`,
            `meadow.fedbuff()`, your own).
        clients: how many clients there are; `simulation.clients`.
        rounds: how many rounds; `run.rounds`.
        cohort: how many clients train in a round, or which fraction of them; `run.cohort`.
        seed: decides everything random; `run.seed`.
        executor: "auto", "sequential", "vectorized", "processes" or "ray". A task that was made
            in Python exists in this process only: "processes" and "ray" need an app folder.
        asynchronous: the section [rounds].
        out: the run folder, new or empty; runs/NAME-DATE-TIME if absent.
        progress: True shows the rounds as they end, False nothing; by default they are shown in a
            terminal and in a notebook.
        on_event: called with the kind and the detail of every event, also of those that are shown.

    An interrupt (Ctrl-C, or a notebook's stop button) ends the run after the current round: the
    returned run's status is "stopped", and `resume` continues it.

    Raises:
        ConfigError: a setting is wrong, or given twice.
        AppError: the app's code cannot be used.
        RunError: the run failed; its folder is there, and `resume` goes on where that is possible.
    """
    tables, algorithm = tables_of(
        {
            "simulation.clients": clients,
            "run.rounds": rounds,
            "run.cohort": cohort,
            "run.seed": seed,
            "simulation.executor": executor,
        },
        strategy,
        {
            "run": run,
            "rounds": asynchronous,
            "selection": selection,
            "robust": robust,
            "compression": compression,
            "training": training,
            "evaluation": evaluation,
            "simulation": simulation,
            "tracking": tracking,
            "privacy": privacy,
        },
        settings or {},
    )
    if isinstance(app, Task):
        loaded = App.of_task(app, replace(config_of(tables), algorithm=algorithm))
    elif isinstance(app, str | Path):
        loaded = _folder_app(Path(app), tables, clients)
        if algorithm is not None and loaded.config is not None:
            loaded = replace(loaded, config=replace(loaded.config, algorithm=algorithm))
    else:
        raise ConfigError(
            f"simulate() takes a meadow.Task or the folder of an app, got {type(app).__name__}"
        )
    folder = Path(out) if out is not None else simulations.default_folder(loaded.name)
    with shown(folder.name, progress, on_event) as show:
        summary = simulations.simulate_app(
            loaded,
            out=folder,
            clients=clients,
            executor=executor if loaded.config is None else None,
            on_event=show,
        )
    return _ended(Run(folder, task=loaded.task), summary)


def resume(
    run: Run | Path | str,
    *,
    task: Task | None = None,
    strategy: Algorithm | None = None,
    progress: Progress = None,
    on_event: OnEvent | None = None,
) -> Run:
    """Resume a simulation that was interrupted or failed, after its last durable round.

    A run of a task that was made in Python needs `task` again (a `Run` of this process has it),
    and `strategy` if that was an algorithm of one's own that the run folder does not name.

    Raises:
        ConfigError: the folder is not a simulation's, or belongs to another task or app.
        RunError: the run failed.
    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    task = task or (run.task if isinstance(run, Run) else None)
    app = None
    if task is not None:
        config = load_config(folder / FILE_NAME, environ={})
        made = None if config.strategy.is_own else strategy  # the folder names it
        app = App.of_task(task, replace(config, algorithm=made))
    with shown(folder.name, progress, on_event) as show:
        summary = simulations.resume(folder, app=app, algorithm=strategy, on_event=show)
    return _ended(Run(folder, task=task), summary)


def _folder_app(folder: Path, tables: Mapping[str, Any], clients: int | None) -> App:
    if not (folder / FILE_NAME).is_file():  # a plain Flower app, or a mistake
        others = {key: value for key, value in tables.items() if key != "simulation.clients"}
        return App.load(folder, overrides=overrides_of(others))
    return App.load(folder, overrides=overrides_of(dict(tables)))


def _ended(run: Run, summary: Mapping[str, Any]) -> Run:
    if summary["status"] == "failed":
        again = f"; meadow.resume({str(run.folder)!r}) goes on after round {summary['rounds']}"
        raise RunError(f"{summary['cause']}{again if summary['rounds'] else ''}")
    return run
