"""`server_app(task, config)`: a Flower ServerApp that runs a task by a configuration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from ..compression.grid import CompressionGrid
from ..config.own_algorithm import of_this_process
from ..config.rules.builders import (
    build_algorithm,
    build_asynchrony,
    build_compression_terms,
    build_secure_terms,
    evaluation_record,
    training_record,
)
from ..config.rules.privacy import build_privacy
from ..config.rules.secure_aggregation import sum_sizes
from ..config.sections.model import Config
from ..config.sections.own_functions import function_of
from ..flower.messages import arrays_to_params, params_to_arrays
from ..privacy.dp.plan import PrivacyPlan
from ..privacy.dp.private_algorithm import private_algorithm
from ..privacy.secagg.server.grid import SecureAggregationGrid
from ..privacy.secagg.terms.terms import SecureTerms
from ..privacy.secagg.terms.vector import VectorLayout
from ..strategies.algorithms.algorithm import Algorithm
from ..strategies.algorithms.mean import Forms, MeanAggregator, MeanStore
from ..strategies.algorithms.metrics import computed
from ..strategies.rounds.adapter import FederatedStrategy, RunResult
from ..strategies.rounds.plan import RoundPlan
from ..strategies.rounds.progress import EarlyStopping
from ..strategies.rounds.recorder import Recorder
from ..strategies.rounds.run_state import Room, has_room
from ..strategies.rounds.schedule import rate_of_round
from ..strategies.rounds.selection import Selection
from .population_ledger import RunShare
from .privacy_ledger import RunLedger
from .private_run import PrivateRun

if TYPE_CHECKING:
    import torch

    from ..task import Data, Task

__all__ = ["CentralEvaluation", "initial_arrays", "open_ledger", "run_rounds", "server_app"]


def server_app(
    task: Task,
    config: Config,
    *,
    recorder: Recorder | None = None,
    strategy: Algorithm | None = None,
) -> ServerApp:
    """Return a Flower ServerApp for `task`; it also runs under Flower alone.

    `strategy` is an algorithm of one's own in the place of the one that [strategy] names; its clients
    need it too, as `client_app`'s. `recorder` stores checkpoints and metrics; without one, the run writes no files.
    """
    if strategy is not None:
        config = of_this_process(replace(config, algorithm=strategy))
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
    initial: Callable[[], ArrayRecord] | None = None,
    store: Callable[[Forms], MeanStore | None] | None = None,
    room: Room = has_room,
) -> RunResult:
    """Run a task's rounds on any Flower grid and return their result.

    `privacy` is the ledger of a private run; without one, the ledger is kept in memory. `initial`
    returns the params before the first round, by default `initial_arrays`. `store` makes the place of large means, which are in memory without; where clients are the unit of privacy, noise is added in memory all the same. `room` is asked whether the disk has room for a round.

    Raises:
        ConfigError: a function of the app's own was not loaded.
        RunError: a round cannot be completed.
    """
    plan = _plan(config, task)
    algorithm = build_algorithm(config)
    of_model = algorithm.of_model
    build = initial or (lambda: initial_arrays(task, config.run.seed))
    first = [build() if of_model else params_to_arrays({})]
    privacy = privacy or open_ledger(config)
    if privacy is not None:
        algorithm = private_algorithm(privacy.plan, algorithm)
    if store is not None and type(algorithm.aggregator) is MeanAggregator:
        algorithm = replace(algorithm, aggregator=replace(algorithm.aggregator, store=store))
    strategy = FederatedStrategy(algorithm, plan, recorder=recorder, privacy=privacy, room=room)
    emit = recorder.event if recorder is not None else lambda kind, detail: None
    if config.privacy.secure_aggregation.enabled:
        terms = _secure_terms(task, config, privacy)
        _require_room(config, terms, first[0])
        grid = SecureAggregationGrid(grid, terms, emit=emit, seed=config.run.seed)
    if (compressed := build_compression_terms(config)) is not None:
        grid = CompressionGrid(grid, compressed, emit=emit)
    return strategy.start(
        grid,
        first.pop(),  # they go when the first round has made others
        num_rounds=config.run.rounds,
        train_config=ConfigRecord(dict(training_record(config))),
        evaluate_config=ConfigRecord(dict(evaluation_record(config))),
        evaluate_fn=CentralEvaluation(
            task, batch_size=config.training.batch_size, seed=config.run.seed
        ),
    )


def open_ledger(
    config: Config,
    path: Path | None = None,
    *,
    sync: bool = True,
    share: RunShare | None = None,
) -> PrivateRun | None:
    """Return the ledger of a private run, None if the run has no differential privacy.

    `share` is the run's part of the server's ledger.

    Raises:
        ConfigError: the settings admit no plan, the file has another mechanism's
            releases, or the server's ledger does not allow the run.
    """
    plan = build_privacy(config)
    if plan is None:
        if share is not None:
            share.ask(None, ())
        return None
    return PrivateRun(plan, RunLedger(path, sync=sync), share)


def _secure_terms(task: Task, config: Config, privacy: PrivateRun | None) -> SecureTerms:
    """Return the terms of the secure sum: its metrics, and the noise that clients add."""
    from ..training.additive_metrics import value_names  # imports torch

    metrics = list(value_names(task))
    if config.evaluation.tuning_epochs or build_algorithm(config).evaluate_config:
        metrics += [f"personal-{name}" for name in metrics]
    plan = None if privacy is None else privacy.plan
    noise = plan.noise_terms if isinstance(plan, PrivacyPlan) else None
    if noise is not None and not noise.is_distributed:
        noise = None
    return build_secure_terms(config, metrics=metrics, noise=noise)


def _require_room(config: Config, terms: SecureTerms, initial: ArrayRecord) -> None:
    """Check, before the first round, that no sum of this model's updates can overflow.

    Raises:
        ConfigError: a sum can overflow.
    """
    length = VectorLayout(arrays_to_params(initial), terms).length
    for clients in sum_sizes(config):
        terms.plan(clients=clients, length=length)


def initial_arrays(task: Task, seed: int) -> ArrayRecord:
    """Return the initial params of a task's model; the same seed gives the same params."""
    from ..training.module_params import build_module, params_of_module

    return params_to_arrays(params_of_module(build_module(task, seed)))


def _plan(config: Config, task: Task) -> RoundPlan:
    from ..training.additive_metrics import additive_metrics_of  # imports torch

    run, stopping, chosen = config.run, config.run.early_stopping, config.selection
    schedule, rate = function_of(config, "training.schedule"), config.training.learning_rate
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
            choose=function_of(config, "selection.kind"),
        ),
        asynchronous=build_asynchrony(config),
        additive_metrics=additive_metrics_of(task),
        learning_rate=None
        if schedule is None
        else rate_of_round(schedule, rate=rate, rounds=run.rounds),
    )


class CentralEvaluation:
    """Evaluates params with the task's `server_data`, which is loaded once."""

    def __init__(self, task: Task, *, batch_size: int, seed: int) -> None:
        self._task = task
        self._batch_size = batch_size
        self._seed = seed
        self._loaded: tuple[torch.nn.Module, Data] | None = None

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Return the metrics of `arrays`; None if the task has no `server_data`."""
        from ..training.additive_metrics import additive_metrics_of
        from ..training.evaluation import evaluate
        from ..training.module_params import build_module, load_some

        if self._task.server_data is None:
            return None
        if self._loaded is None:
            self._loaded = build_module(self._task, self._seed), self._task.server_data()
        module, data = self._loaded
        load_some(module, arrays_to_params(arrays))
        _, means = evaluate(self._task, module, data, batch_size=self._batch_size)
        found = computed(means, additive_metrics_of(self._task))
        return MetricRecord({n: math.nan if each is None else each for n, each in found.items()})
