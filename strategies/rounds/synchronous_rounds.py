"""Synchronous rounds: a cohort trains, and the round ends when all of it has answered.

With a deadline they are semi-synchronous: later replies do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid

from ...errors import ConfigError, QuorumError, RunError
from ...flower.messages import params_to_arrays
from ..algorithms.algorithm import State
from ..algorithms.client_memory import ClientMemory, with_memory, without_memory
from ..algorithms.metrics import Metrics, scalars_of
from .broadcast import Broadcast, instruction_for_all
from .cohort import wait_for_separated
from .grids import (
    combines_in_groups,
    combines_updates,
    forget_group,
    name_of,
    recall_group,
)
from .private_rounds import PrivateRounds
from .recorder import RoundTable
from .relayed import require_sums_suffice
from .replies import TrainingReplies, collect_evaluation
from .result import metric_record
from .run_state import Meter, RunState
from .virtual_time import draw_on, late_on

__all__ = ["SynchronousRounds"]


class SynchronousRounds:
    """Flower's four steps of a round, and what a round begins and ends with.

    The strategy makes rounds of them.
    """

    def __init__(
        self,
        run_state: RunState,
        *,
        privacy: PrivateRounds | None,
        clock: Callable[[], float],
    ) -> None:
        self._run_state = run_state
        self._plan = run_state.plan
        self._privacy = privacy
        self._clock = clock
        self._spent: Mapping[str, Any] | None = None
        """The entry "privacy" of the round's row."""
        self._replies: TrainingReplies | None = None
        self._contributors: Sequence[int] = ()
        self._table = RoundTable()
        self._memory = ClientMemory.empty()
        self._combined = False
        self._evaluated: Sequence[int] = ()
        """Who is asked to evaluate."""
        self._unevaluated: set[int] = set()
        """Who was, and did not."""

    # ------------------------------------------------------------------ Flower's steps

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Broadcast:
        """Draw the cohort, waiting for enough clients, and return its instructions."""
        run_state = self._run_state
        if arrays is not run_state.arrays:
            run_state.adopt(arrays, server_round)
        cohort = self._cohort_of(server_round, grid)
        if self._privacy is not None and self._privacy.ahead:
            self._spent = self._privacy.account(server_round)
        self._combined = combines_updates(grid)
        self.refuse_misfit(grid)
        sent = run_state.algorithm.sent(run_state.state)
        run_state.room(run_state.state, sent, cohort)
        algorithm = run_state.algorithm.at(run_state.state)
        self._replies = TrainingReplies(
            number=server_round,
            cohort=cohort,
            params=sent,
            algorithm=algorithm,
            plan=self._plan,
            quorum=0 if self._by_coins else self._plan.min_clients,
            combined=self._combined,
            reports=self._privacy is None,
            emit=run_state.emit,
            name_of=name_of(grid),
        )
        run_state.emit("round_started", {"round": server_round, "clients": len(cohort)})
        content = run_state.record_of(sent)
        extra = {
            **algorithm.client_config,
            **self._plan.instructed(server_round),
            **run_state.params_config,
        }
        return instruction_for_all(MessageType.TRAIN, server_round, cohort, content, config, extra)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies as they come, and make the new params of them."""
        if self._replies is None:
            raise RunError(f"round {server_round}: replies came before any instruction")
        collected, self._replies = self._replies, None
        for message in replies:
            collected.take(message)
        if self._privacy is not None and not self._privacy.ahead:
            self._spent = self._privacy.account(server_round)
        self._run_state.apply(collected.finish())
        self._contributors = collected.contributors
        self._table = RoundTable(
            round=server_round, train=collected.table, failed=sorted(collected.failures)
        )
        self._unevaluated = set()
        if self._plan.selection.remembers:
            self._memory = self._memory.after(collected.table, server_round, collected.cohort)
        return self._run_state.arrays, metric_record(collected.metrics())

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Broadcast:
        """Return the instructions to evaluate, for the clients whose updates counted."""
        run_state, algorithm = self._run_state, self._run_state.algorithm
        evaluated = algorithm.evaluated(run_state.state) if algorithm.evaluated else {}
        if evaluated is not run_state.state.params:
            arrays = params_to_arrays(evaluated)
        extra, clients = (
            {**algorithm.evaluate_config, **run_state.params_config},
            self._contributors,
        )
        self._evaluated = clients
        return instruction_for_all(
            MessageType.EVALUATE, server_round, clients, arrays, config, extra
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average what the clients measured, by their number of examples."""
        metrics = collect_evaluation(
            replies,
            number=server_round,
            clients=self._evaluated,
            combined=self._combined,
            emit=self._run_state.emit,
            table=self._table.evaluate,
            failed=self._unevaluated,
        )
        return metric_record(metrics) if metrics else None

    # ------------------------------------------------------------------ around them

    def refuse_misfit(self, grid: Grid) -> None:
        """Refuse a grid that adds up what the algorithm must see one by one."""
        algorithm = self._run_state.algorithm
        require_sums_suffice(algorithm, grid)
        if combines_updates(grid) and not combines_in_groups(grid) and not algorithm.linear:
            raise ConfigError(
                f"{algorithm.name} needs every single update, but {type(grid).__name__} "
                "adds updates up: use a linear algorithm or another grid"
            )

    def recall(self, state: State) -> State:
        """Remember the clients that a checkpoint knows."""
        state, self._memory = without_memory(state)
        return state

    def meter(self, grid: Grid) -> Meter:
        """Return what measures a round that begins now."""
        return Meter(self._clock, grid)

    def asks_clients(self) -> bool:
        """Whether clients are asked to evaluate: what they measure must not tell of private data."""
        return self._privacy is None and self._run_state.algorithm.evaluated is not None

    def expect_evaluation(self, questions: Sequence[Message]) -> None:
        """Note who is asked: not whom `configure_evaluate` named, if the strategy was wrapped."""
        self._evaluated = _clients_in(questions)

    def note_late(self, grid: Grid) -> None:
        """Note whose answers to the training came too late, where the grid knows."""
        self._table = replace(self._table, late=late_on(grid))

    def commit(
        self,
        number: int,
        grid: Grid,
        meter: Meter,
        *,
        asked: int,
        train: MetricRecord | None,
        evaluated: MetricRecord | None,
        central: Metrics,
    ) -> None:
        """Make a round durable that `asked` so many clients."""
        run_state = self._run_state
        missing = asked - len(self._contributors)
        row = {
            "round": number,
            "clients": len(self._contributors),
            "failures": missing + len(self._unevaluated.intersection(self._contributors)),
            "train": scalars_of(train),
            "evaluate": scalars_of(evaluated),
            "server": central,
            "privacy": self._spent,
            **meter.read(grid),
        }
        run_state.commit(row, self._table, with_memory(run_state.state, self._memory))
        forget_group(grid, str(number))

    @property
    def _by_coins(self) -> bool:
        return self._privacy is not None and self._privacy.by_sampling

    def _cohort_of(self, number: int, grid: Grid) -> list[int]:
        if known := recall_group(grid, str(number)):
            return known
        needed, emit = self._plan.min_clients, self._run_state.emit
        present = wait_for_separated(
            grid,
            needed,
            lambda ids: self._plan.selection.separated(ids, self._memory, number),
            emit=lambda count: emit("waiting", {"connected": count, "needed": needed}),
        )
        if len(present) < needed:
            resting = " and rested" if self._plan.selection.limits else ""
            raise QuorumError(
                f"round {number}: {len(present)} of {needed} clients are connected{resting}"
            )
        drawn = self._privacy.draw(number, present) if self._privacy is not None else None
        if drawn is not None:
            return drawn
        return draw_on(grid, present, self._plan, self._memory, number)


def _clients_in(messages: Iterable[Message]) -> Sequence[int]:
    if isinstance(messages, Broadcast):
        return messages.clients
    return [message.metadata.dst_node_id for message in messages]
