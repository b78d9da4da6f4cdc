"""`server_app(task, config)`: a Flower ServerApp that runs a task by a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from ..compression.grid import CompressionGrid
from ..config import (
    Config,
    build_algorithm,
    build_asynchrony,
    build_compression_terms,
    build_secure_terms,
    evaluation_record,
    training_record,
)
from ..flower import params_to_arrays
from ..privacy.secure_grid import SecureAggregationGrid
from ..private_config import build_privacy
from ..strategies.adapter import FederatedStrategy, RunResult
from ..strategies.plan import EarlyStopping, RoundPlan
from ..strategies.recorder import Recorder
from ..strategies.selection import Selection
from .central import CentralEvaluation
from .privacy_ledger import RunLedger
from .private_run import PrivateRun

if TYPE_CHECKING:
    from ..task import Task

__all__ = ["initial_arrays", "open_books", "run_rounds", "server_app"]


def server_app(task: Task, config: Config, *, recorder: Recorder | None = None) -> ServerApp:
    """Return a Flower ServerApp for `task`; it also runs under Flower alone.

    `recorder` keeps checkpoints and metrics; without one the run leaves nothing behind.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_rounds(task, config, grid, recorder=recorder)

    return app


def run_rounds(
    task: Task,
    config: Config,
    grid: Grid,
    *,
    recorder: Recorder | None = None,
    privacy: PrivateRun | None = None,
) -> RunResult:
    """Run a task's rounds on any Flower grid and return what came of it.

    `privacy` are the books of a private run; without them they are kept in memory.

    Raises:
        RunError: a round cannot be completed.
    """
    algorithm = build_algorithm(config)
    privacy = privacy or open_books(config)
    if privacy is not None:
        algorithm = privacy.plan.private(algorithm)
    strategy = FederatedStrategy(algorithm, _plan(config), recorder=recorder, privacy=privacy)
    if config.privacy.secure_aggregation.enabled:
        grid = _secured(grid, task, config, recorder)
    if (terms := build_compression_terms(config)) is not None:
        grid = CompressionGrid(grid, terms)
    return strategy.start(
        grid,
        initial_arrays(task, config.run.seed) if algorithm.of_model else params_to_arrays({}),
        num_rounds=config.run.rounds,
        train_config=ConfigRecord(dict(training_record(config))),
        evaluate_config=ConfigRecord(dict(evaluation_record(config))),
        evaluate_fn=CentralEvaluation(
            task, batch_size=config.training.batch_size, seed=config.run.seed
        ),
    )


def open_books(config: Config, path: Path | None = None, *, sync: bool = True) -> PrivateRun | None:
    """Return the books of a private run, None if the configuration does without privacy.

    Raises:
        ConfigError: there is no such plan, or the file has another run's releases.
    """
    plan = build_privacy(config)
    return None if plan is None else PrivateRun(plan, RunLedger(path, sync=sync))


def _secured(
    grid: Grid, task: Task, config: Config, recorder: Recorder | None
) -> SecureAggregationGrid:
    """Return a grid that shows the strategy nothing but sums."""
    metrics = ["loss", *task.metrics]
    if config.evaluation.tuning_epochs or build_algorithm(config).evaluate_config:
        metrics += [f"personal-{name}" for name in metrics]
    return SecureAggregationGrid(
        grid,
        build_secure_terms(config, metrics=metrics),
        tell=recorder.event if recorder is not None else lambda kind, detail: None,
        seed=config.run.seed,
    )


def initial_arrays(task: Task, seed: int) -> ArrayRecord:
    """Return the params that a task's model begins with, the same for the same seed."""
    from ..module_params import build_module, params_of_module

    return params_to_arrays(params_of_module(build_module(task, seed)))


def _plan(config: Config) -> RoundPlan:
    run, stopping, chosen = config.run, config.run.early_stopping, config.selection
    return RoundPlan(
        cohort=run.cohort,
        min_clients=run.min_clients,
        deadline_s=run.deadline_s,
        seed=run.seed,
        evaluate_every=config.evaluation.every,
        early_stopping=None
        if stopping is None
        else EarlyStopping(metric=stopping.metric, mode=stopping.mode, patience=stopping.patience),
        update_norm_max=run.update_norm_max,
        update_norm_policy=run.update_norm_policy,
        selection=Selection(
            kind=chosen.kind,
            tags=chosen.tags,
            candidates=chosen.candidates,
            exploration=chosen.exploration,
            separation=chosen.min_separation,
            participations_max=chosen.participations_max,
        ),
        asynchronous=build_asynchrony(config),
    )
