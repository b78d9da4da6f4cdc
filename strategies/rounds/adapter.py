"""Runs an `Algorithm` as a Flower Strategy: rounds, quorum, deadlines, resume, early stopping.

Works on any Flower Grid; `grids.py` lists optional features of grids.

Events that a `Recorder` receives: resumed, waiting, round_started, update_refused, update_clipped,
client_failed, evaluation_refused, round_committed, early_stopped, stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from ...errors import ConfigError, QuorumError
from ..algorithms.algorithm import Algorithm
from ..algorithms.metrics import Metrics
from .asynchronous_rounds import AsynchronousRounds
from .broadcast import Broadcast
from .grids import is_stopping, refuse_tags
from .plan import RoundPlan
from .private_rounds import PrivateRounds
from .recorder import Recorder
from .result import RunResult, Status
from .rounds import Evaluate, Rounds, RoundTerms
from .run_state import Room, RunState, has_room
from .synchronous_rounds import SynchronousRounds
from .virtual_time import begin_after

__all__ = ["Evaluate", "FederatedStrategy", "RunResult"]


class FederatedStrategy(Strategy):
    """A Flower Strategy that runs an algorithm by a plan.

    Guarantees: the params after a round depend on the params before it and the set of valid
        updates, to the last bit: not on the order of arrival, nor on interruptions.
        A bad reply is refused with an event; it never ends the round.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        plan: RoundPlan,
        *,
        recorder: Recorder | None = None,
        privacy: PrivateRounds | None = None,
        room: Room = has_room,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`room` is asked before a cohort's instructions go out, and raises if there is none for its replies."""
        self._run_state = RunState(algorithm, plan, recorder, room)
        self._steps = SynchronousRounds(self._run_state, privacy=privacy, clock=clock)
        self._asynchronous: AsynchronousRounds | None = None
        if plan.asynchronous is not None:
            if privacy is not None:
                raise ConfigError(
                    "differential privacy accounts for cohorts that are drawn, and asynchronous "
                    "rounds take whoever is fast: remove one of the two"
                )
            self._asynchronous = AsynchronousRounds(self._run_state, plan.asynchronous, clock=clock)

    def summary(self) -> None:
        """Print nothing: the command that starts a run shows its configuration."""

    # ------------------------------------------------------------------ Flower's steps

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Broadcast:
        """Draw the cohort, waiting for enough clients, and return its instructions."""
        return self._steps.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies as they come, and make the new params of them.

        Raises:
            QuorumError: there are fewer valid updates than the quorum.
            RunError: the new params are not finite.
        """
        return self._steps.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Broadcast:
        """Return the instructions to evaluate, for the clients whose updates counted."""
        return self._steps.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average what the clients measured, by their number of examples."""
        return self._steps.aggregate_evaluate(server_round, replies)

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
        run_state = self._run_state
        rounds: Rounds = self._asynchronous or self._steps
        refuse_tags(run_state.plan.selection, grid)
        rounds.refuse_misfit(grid)
        initial = run_state.begin(initial_arrays, rounds, evaluate_fn)
        del initial_arrays  # a large model, perhaps
        begin_after(grid, run_state.history)
        terms = RoundTerms(
            last=num_rounds,
            deadline_s=run_state.plan.deadline_s if timeout is None else timeout,
            train_config=train_config or ConfigRecord(),
            evaluate_config=evaluate_config or ConfigRecord(),
            evaluate=evaluate_fn,
        )
        status, cause = self._run(grid, terms)
        return run_state.result(initial, status, cause)

    def _run(self, grid: Grid, terms: RoundTerms) -> tuple[Status, str]:
        """Run rounds until the last one; return how and why they ended."""
        run_state, cause = self._run_state, ""
        while run_state.state.round < terms.last:
            if is_stopping(grid):
                return "stopped", "the run was asked to stop"
            if cause := run_state.is_exhausted():
                break
            try:
                if self._asynchronous is not None:
                    self._asynchronous.run(grid, terms)
                else:
                    self._run_round(grid, terms)
            except QuorumError:
                if not is_stopping(grid):
                    raise
        return "finished", cause

    def _run_round(self, grid: Grid, terms: RoundTerms) -> None:
        """Train, aggregate, evaluate, commit: by this strategy's own steps, as a subclass or whoever
        wraps them has changed them."""
        run_state, steps = self._run_state, self._steps
        meter, number = steps.meter(grid), run_state.state.round + 1
        asked = _list_of(self.configure_train(number, run_state.arrays, terms.train_config, grid))
        replies = grid.send_and_receive(asked, timeout=terms.deadline_s)
        _, train = self.aggregate_train(number, replies)
        steps.note_late(grid)
        evaluated: MetricRecord | None = None
        central: Metrics = {}
        if run_state.plan.evaluates(number, last=terms.last):
            if steps.asks_clients():
                questions = _list_of(
                    self.configure_evaluate(number, run_state.arrays, terms.evaluate_config, grid)
                )
                steps.expect_evaluation(questions)
                replies = grid.send_and_receive(questions, timeout=terms.deadline_s)
                evaluated = self.aggregate_evaluate(number, replies)
            central = run_state.measure(number, terms.evaluate)
        steps.commit(
            number,
            grid,
            meter,
            asked=len(asked),
            train=train,
            evaluated=evaluated,
            central=central,
        )


def _list_of(messages: Iterable[Message]) -> Sequence[Message]:
    """Return messages as something that knows how many they are: a Broadcast stays one."""
    return messages if isinstance(messages, Broadcast) else list(messages)
