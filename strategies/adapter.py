"""Runs an `Algorithm` as a Flower Strategy: rounds, quorum, deadlines, resume, early stopping.

Works on any Flower Grid; `grids.py` says what a grid may do more.

Events that a `Recorder` hears: resumed, waiting, round_started, update_refused, update_clipped,
client_failed, evaluation_refused, round_committed, early_stopped, stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from ..errors import ConfigError, QuorumError, RunError
from ..flower import arrays_to_params, params_to_arrays, tensors_of
from .algorithm import Algorithm, Params, State
from .broadcast import Broadcast
from .checks import fault_in
from .client_memory import ClientMemory, with_memory, without_memory
from .cohort import wait_for_rested
from .companions import refuse_clashes
from .grids import (
    combines_in_groups,
    combines_updates,
    forget_round,
    is_stopping,
    recall_cohort,
    tags_of,
    traffic_bytes,
)
from .metrics import Metrics, scalars_of
from .plan import RoundPlan
from .private_rounds import PrivateRounds
from .progress import Progress
from .recorder import Checkpoint, Recorder, RoundTable, Row
from .replies import TrainingReplies, collect_evaluation
from .result import RunResult, Status, metric_record, result_of
from .virtual_time import begin_after, draw_on, late_on, virtual_time_of

__all__ = ["Evaluate", "FederatedStrategy", "RunResult"]

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
"""Central evaluation: (round, params) -> metrics."""


class FederatedStrategy(Strategy):
    """A Flower Strategy that runs an algorithm by a plan.

    Guarantees: the params after a round depend on the params before it and the set of valid
        updates, to the last bit: not on the order of arrival, nor on interruptions.
        A bad reply is refused and told; it never ends the round.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        plan: RoundPlan,
        *,
        recorder: Recorder | None = None,
        privacy: PrivateRounds | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._algorithm = algorithm
        self._plan = plan
        self._recorder = recorder
        self._privacy = privacy
        self._spent: Mapping[str, Any] | None = None
        """What the round's row says of privacy."""
        self._clock = clock
        self._state = State(params={})
        self._told: Mapping[str, int] = {}
        """What clients are told that follows from the initial params."""
        self._arrays = ArrayRecord()
        """What is broadcast: the params of `_state`."""
        self._replies: TrainingReplies | None = None
        self._contributors: Sequence[int] = ()
        self._table = RoundTable()
        self._memory = ClientMemory.empty()
        self._combined = False
        self._progress = Progress()
        self._history: list[Row] = []

    def summary(self) -> None:
        """Say nothing: whoever starts a run shows its configuration."""

    # ------------------------------------------------------------------ Flower's steps

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Broadcast:
        """Draw the cohort, waiting for enough clients, and return its instructions."""
        if arrays is not self._arrays:
            self._adopt(arrays, server_round)
        cohort = self._cohort_of(server_round, grid)
        self._combined = combines_updates(grid)
        sent, algorithm = self._algorithm.sent(self._state), self._algorithm.at(self._state)
        self._replies = TrainingReplies(
            number=server_round,
            cohort=cohort,
            params=sent,
            algorithm=algorithm,
            plan=self._plan,
            combined=self._combined,
            reports=self._privacy is None,
            tell=self._tell,
        )
        self._tell("round_started", {"round": server_round, "clients": len(cohort)})
        content, extra = self._record_of(sent), {**algorithm.client_config, **self._told}
        return _broadcast(MessageType.TRAIN, server_round, cohort, content, config, extra)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies as they come, and make the new params of them.

        Raises:
            QuorumError: there are fewer valid updates than the quorum.
            RunError: the new params are not finite.
        """
        if self._replies is None:
            raise RunError(f"round {server_round}: replies came before any instruction")
        collected, self._replies = self._replies, None
        for message in replies:
            collected.take(message)
        if self._privacy is not None:
            self._spent = self._privacy.account(server_round)
        aggregate = collected.finish()
        state = self._algorithm.apply(self._state, aggregate)
        arrays = params_to_arrays(state.params)
        for name, tensor in tensors_of(arrays).items():
            if fault := fault_in(tensor):
                raise RunError(
                    f"round {server_round}: the new params are useless: tensor {name!r} {fault}; "
                    "lower server_learning_rate or set update_norm_max"
                )
        self._contributors = collected.contributors
        self._table = RoundTable(
            round=server_round, train=collected.table, failed=sorted(collected.failures)
        )
        self._state, self._arrays = state, arrays
        if self._plan.selection.remembers:
            self._memory = self._memory.after(collected.table, server_round, collected.cohort)
        return arrays, metric_record(collected.metrics())

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Broadcast:
        """Return the instructions to evaluate, for the clients whose updates counted."""
        clients, algorithm = self._contributors, self._algorithm
        evaluated = algorithm.evaluated(self._state) if algorithm.evaluated else {}
        if evaluated is not self._state.params:
            arrays = params_to_arrays(evaluated)
        extra = {**algorithm.evaluate_config, **self._told}
        return _broadcast(MessageType.EVALUATE, server_round, clients, arrays, config, extra)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average what the clients measured, by their number of examples."""
        metrics = collect_evaluation(
            replies,
            number=server_round,
            clients=self._contributors,
            combined=self._combined,
            tell=self._tell,
            table=self._table.evaluate,
        )
        return metric_record(metrics) if metrics else None

    # ------------------------------------------------------------------ a run

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> RunResult:
        """Run rounds up to `num_rounds`, from the recorder's checkpoint if it has one.

        Units: `timeout` is a round's deadline in seconds; None takes the plan's.
        Raises:
            QuorumError: a round had too few valid updates.
            RunError: the run cannot go on; nothing of the failed round is kept.
            ConfigError: the algorithm and the grid, or the checkpoint and the model, do not fit.
        """
        self._refuse_misfit(grid)
        refuse_clashes(initial_arrays, self._algorithm.companions, algorithm=self._algorithm.name)
        initial = self._restore(initial_arrays, evaluate_fn)
        begin_after(grid, self._history)
        status: Status = "finished"
        cause = ""
        while self._state.round < num_rounds:
            if is_stopping(grid):
                status, cause = "stopped", "the run was asked to stop"
                break
            if self._progress.is_exhausted(self._plan.early_stopping):
                cause = self._progress.explain(self._plan.early_stopping)
                self._tell("early_stopped", {"round": self._state.round, "cause": cause})
                break
            try:
                self._run_round(
                    grid,
                    last=num_rounds,
                    deadline_s=self._plan.deadline_s if timeout is None else timeout,
                    train_config=train_config or ConfigRecord(),
                    evaluate_config=evaluate_config or ConfigRecord(),
                    evaluate_fn=evaluate_fn,
                )
            except QuorumError:
                if not is_stopping(grid):
                    raise
        if status == "stopped":
            self._tell("stopped", {"round": self._state.round, "cause": cause})
        return result_of(
            self._history,
            arrays=self._arrays,
            rounds=self._state.round,
            initial=initial,
            status=status,
            cause=cause,
            best=self._progress.best,
        )

    def _run_round(
        self,
        grid: Grid,
        *,
        last: int,
        deadline_s: float,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        evaluate_fn: Evaluate | None,
    ) -> None:
        number, began_s, traffic = self._state.round + 1, self._clock(), traffic_bytes(grid)
        instructions = self.configure_train(number, self._arrays, train_config, grid)
        replies = grid.send_and_receive(instructions, timeout=deadline_s)
        _, train = self.aggregate_train(number, replies)
        self._table = replace(self._table, late=late_on(grid))
        evaluated: MetricRecord | None = None
        central: Metrics = {}
        if self._plan.evaluates(number, last=last):
            if self._privacy is None and self._algorithm.evaluated is not None:
                questions = self.configure_evaluate(number, self._arrays, evaluate_config, grid)
                replies = grid.send_and_receive(questions, timeout=deadline_s)
                evaluated = self.aggregate_evaluate(number, replies)
            central = self._evaluate_centrally(number, evaluate_fn)
        sent, received = (
            now - before for now, before in zip(traffic_bytes(grid), traffic, strict=True)
        )
        row = {
            "round": number,
            "duration_s": self._clock() - began_s,
            "clients": len(self._contributors),
            "failures": len(instructions) - len(self._contributors),
            "train": scalars_of(train),
            "evaluate": scalars_of(evaluated),
            "server": central,
            "bytes_sent": sent,
            "bytes_received": received,
            "privacy": self._spent,
            **virtual_time_of(grid),
        }
        self._commit(row)
        forget_round(grid, number)

    def _commit(self, row: Row) -> None:
        """Make a round durable; from then on the params are read from where they were written."""
        progress = self._progress.after(row, self._plan.early_stopping)
        history = [*self._history, row]
        if self._recorder is not None:
            checkpoint = Checkpoint(
                state=with_memory(self._state, self._memory),
                best=progress.best,
                stale_rounds=progress.stale_rounds,
                history=history,
            )
            self._arrays = self._recorder.commit(checkpoint, row, self._table)
            del checkpoint
            self._state = replace(self._state, params=arrays_to_params(self._arrays))
        self._progress, self._history = progress, history
        self._tell("round_committed", row)

    # ------------------------------------------------------------------ parts of it

    def _restore(self, initial_arrays: ArrayRecord, evaluate_fn: Evaluate | None) -> Metrics:
        """Begin, or continue from the newest checkpoint; return the metrics before round 1."""
        self._adopt(initial_arrays, 1)
        self._progress, self._history, self._memory = Progress(), [], ClientMemory.empty()
        checkpoint = self._recorder.resume() if self._recorder is not None else None
        if checkpoint is None:
            return self._evaluate_centrally(0, evaluate_fn) if self._plan.evaluate_every else {}
        state, self._memory = without_memory(checkpoint.state)
        if self._form_of(state) != self._form_of(self._state):
            raise ConfigError(
                f"the checkpoint of round {state.round} belongs to another model or server "
                "optimizer: continue with the configuration that it was made with, or start anew"
            )
        self._state, self._arrays = state, params_to_arrays(state.params)
        self._progress = Progress(best=checkpoint.best, stale_rounds=checkpoint.stale_rounds)
        self._history = list(checkpoint.history)
        self._tell("resumed", {"round": state.round})
        return {}

    def _adopt(self, arrays: ArrayRecord, server_round: int) -> None:
        """Take params that somebody else made: the initial ones, or a wrapper's."""
        params = arrays_to_params(arrays)
        if server_round == 1 or not self._state.params:
            self._state = replace(self._algorithm.init(params), round=server_round - 1)
            self._told = self._algorithm.told(params)
        else:
            self._state = replace(self._state, params=params)
        self._arrays = params_to_arrays(self._state.params)

    def _record_of(self, sent: Params) -> ArrayRecord:
        return self._arrays if sent is self._state.params else params_to_arrays(sent)

    def _refuse_misfit(self, grid: Grid) -> None:
        asked, met = self._plan.selection.tags, tags_of(grid)
        if set(asked) != set(met):
            raise ConfigError(
                f"selection.tags asks for {', '.join(asked) or 'no tag'}, and {type(grid).__name__} "
                f"has clients with {', '.join(met) or 'any tags'}; remove selection.tags, or use "
                "Meadow's server or simulation"
            )
        alone = combines_updates(grid) and not combines_in_groups(grid)
        if alone and not self._algorithm.linear:
            raise ConfigError(
                f"{self._algorithm.name} needs every single update, but {type(grid).__name__} "
                "adds updates up: use a linear algorithm or another grid"
            )

    def _cohort_of(self, number: int, grid: Grid) -> list[int]:
        if known := recall_cohort(grid, number):
            return known
        needed = self._plan.min_clients
        present = wait_for_rested(
            grid,
            needed,
            lambda ids: self._plan.selection.rested(ids, self._memory, number),
            tell=lambda count: self._tell("waiting", {"connected": count, "needed": needed}),
        )
        if len(present) < needed:
            resting = " and rested" if self._plan.selection.limits else ""
            raise QuorumError(
                f"round {number}: {len(present)} of {needed} clients are connected{resting}"
            )
        drawn = self._privacy.draw(present) if self._privacy is not None else None
        if drawn is not None:
            return drawn
        return draw_on(grid, present, self._plan, self._memory, number)

    def _evaluate_centrally(self, number: int, evaluate_fn: Evaluate | None) -> Metrics:
        algorithm = self._algorithm
        if number and algorithm.measured is not None:
            return dict(algorithm.measured(self._state))
        if evaluate_fn is None or not algorithm.of_model:
            return {}
        return scalars_of(evaluate_fn(number, self._arrays))

    def _form_of(self, state: State) -> tuple[Any, ...]:
        """Return what must agree between a checkpoint and the model that continues it."""
        open_ended = self._algorithm.lengths_max
        params = [
            (name, () if name in open_ended else values.shape, values.dtype)
            for name, values in state.params.items()
        ]
        return params, sorted(state.slots)

    def _tell(self, kind: str, detail: Mapping[str, Any]) -> None:
        if self._recorder is not None:
            self._recorder.event(kind, detail)


def _broadcast(
    kind: str,
    number: int,
    clients: Sequence[int],
    arrays: ArrayRecord,
    config: ConfigRecord,
    extra: Mapping[str, float | int | str | bool],
) -> Broadcast:
    settings = ConfigRecord({**config, **extra, "server-round": number})
    content = RecordDict({"arrays": arrays, "config": settings})
    return Broadcast(content, kind, clients, group_id=str(number))
