"""The state of a run: its params, its history, and the checkpoint that a restart continues from.

It is the same for every kind of rounds (`rounds.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from ...errors import ConfigError, RunError
from ...flower.messages import params_in, params_to_arrays, tensors_of
from ..algorithms.algorithm import Aggregate, Algorithm, Params, State
from ..algorithms.auxiliary_names import refuse_clashes
from ..algorithms.metrics import Metrics, computed, scalars_of
from .checks import fault_in
from .grids import traffic_bytes
from .plan import RoundPlan
from .progress import Progress
from .recorder import Checkpoint, Recorder, RoundTable, Row
from .result import RunResult, Status, result_of
from .rounds import Evaluate, Rounds
from .virtual_time import virtual_time_of

__all__ = ["Meter", "Room", "RunState", "has_room"]

Room = Callable[[State, Params, Sequence[int]], None]
"""Checks that there is disk for a round: of the state before it, of what is sent, with this cohort."""


def has_room(state: State, sent: Params, cohort: Sequence[int]) -> None:
    """Check nothing."""


class RunState:
    """A run's state, its params as they are broadcast, and its history.

    Attributes:
        arrays: the params of `state`; once a round is durable, read from where it was written.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        plan: RoundPlan,
        recorder: Recorder | None,
        room: Room = has_room,
    ) -> None:
        self.algorithm = algorithm
        self.plan = plan
        self._recorder = recorder
        self.room = room
        self.state = State(params={})
        self.arrays = ArrayRecord()
        self.params_config: Mapping[str, int] = {}
        """Keys for the clients that follow from the initial params."""
        self.history: list[Row] = []
        self._progress = Progress()

    # ------------------------------------------------------------------ its beginning

    def begin(self, initial: ArrayRecord, rounds: Rounds, evaluate: Evaluate | None) -> Metrics:
        """Begin, or continue from the newest checkpoint; return the metrics before round 1.

        Raises:
            ConfigError: the checkpoint, or a tensor's name, is not the algorithm's.
        """
        refuse_clashes(initial, self.algorithm.auxiliary, algorithm=self.algorithm.name)
        self.adopt(initial, 1)
        self._progress, self.history = Progress(), []
        checkpoint = self._recorder.resume() if self._recorder is not None else None
        if checkpoint is None:
            rounds.recall(self.state)
            return self.measure(0, evaluate) if self.plan.evaluate_every else {}
        state = rounds.recall(checkpoint.state)
        if self._form_of(state) != self._form_of(self.state):
            raise ConfigError(
                f"the checkpoint of round {state.round} belongs to another model or server "
                "optimizer: continue with the configuration that it was made with, or start anew"
            )
        self.state, self.arrays = state, params_to_arrays(state.params)
        self._progress = Progress(best=checkpoint.best, stale_rounds=checkpoint.stale_rounds)
        self.history = list(checkpoint.history)
        self.emit("resumed", {"round": state.round})
        return {}

    def adopt(self, arrays: ArrayRecord, server_round: int) -> None:
        """Take params from elsewhere: the initial ones, or those of a wrapping strategy."""
        params = params_in(arrays)
        if server_round == 1 or not self.state.params:
            self.state = replace(self.algorithm.init(params), round=server_round - 1)
            self.params_config = self.algorithm.params_config(params)
        else:
            self.state = replace(self.state, params=params)
        self.arrays = params_to_arrays(self.state.params)

    # ------------------------------------------------------------------ its rounds

    def record_of(self, sent: Params) -> ArrayRecord:
        """Return what clients are sent as a record: the one that is there, if it is the params."""
        return self.arrays if sent is self.state.params else params_to_arrays(sent)

    def apply(self, aggregate: Aggregate) -> None:
        """Make the next params.

        Raises:
            RunError: they are not finite.
        """
        state = self.algorithm.apply(self.state, aggregate)
        arrays = params_to_arrays(state.params)
        for name, tensor in tensors_of(arrays).items():
            if fault := fault_in(tensor):
                raise RunError(
                    f"round {self.state.round + 1}: the new params are useless: tensor {name!r} "
                    f"{fault}; lower server_learning_rate or set update_norm_max"
                )
        self.state, self.arrays = state, arrays

    def measure(self, number: int, evaluate: Evaluate | None) -> Metrics:
        """Evaluate the params centrally, or by the algorithm's own `measured`."""
        if number and self.algorithm.measured is not None:
            return self.algorithm.measured(self.state)
        if evaluate is None or not self.algorithm.of_model:
            return {}
        return scalars_of(evaluate(number, self.arrays))

    def commit(self, row: Row, table: RoundTable, kept: State) -> None:
        """Make a round durable; afterwards the params are read from the checkpoint.

        `kept` is the state with what the rounds keep beside.
        """
        if additive := self.plan.additive_metrics:
            row = {**row, **{part: computed(row[part], additive) for part in ("train", "evaluate")}}
            table.train.compute(additive)
            table.evaluate.compute(additive)
        progress = self._progress.after(row, self.plan.early_stopping)
        history = [*self.history, row]
        if self._recorder is not None:
            checkpoint = Checkpoint(
                state=kept, best=progress.best, stale_rounds=progress.stale_rounds, history=history
            )
            self.arrays = self._recorder.commit(checkpoint, row, table)
            self.state = replace(self.state, params=params_in(self.arrays))
        self._progress, self.history = progress, history
        self.emit("round_committed", row)

    # ------------------------------------------------------------------ its end

    def is_exhausted(self) -> str:
        """Return why early stopping ends the run here, and emit the event; "" if it does not."""
        stopping = self.plan.early_stopping
        if not self._progress.is_exhausted(stopping):
            return ""
        cause = self._progress.explain(stopping)
        self.emit("early_stopped", {"round": self.state.round, "cause": cause})
        return cause

    def result(self, initial: Metrics, status: Status, cause: str) -> RunResult:
        """Return how the run ended."""
        if status == "stopped":
            self.emit("stopped", {"round": self.state.round, "cause": cause})
        return result_of(
            self.history,
            arrays=self.arrays,
            rounds=self.state.round,
            initial=initial,
            status=status,
            cause=cause,
            best=self._progress.best,
        )

    def _form_of(self, state: State) -> tuple[Any, ...]:
        """Return what must agree between a checkpoint and the model that continues it."""
        open_ended = self.algorithm.lengths_max
        params = [
            (name, () if name in open_ended else values.shape, values.dtype)
            for name, values in state.params.items()
        ]
        return params, sorted(state.slots)

    def emit(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Pass an event on to the recorder."""
        if self._recorder is not None:
            self._recorder.event(kind, detail)


class Meter:
    """What a round takes: seconds, and bytes on the grid, from the moment that this is made."""

    def __init__(self, clock: Callable[[], float], grid: Grid) -> None:
        self._clock = clock
        self._began_s, self._bytes = clock(), traffic_bytes(grid)

    def read(self, grid: Grid) -> dict[str, float]:
        """Return a row's entries."""
        sent, received = (
            now - before for now, before in zip(traffic_bytes(grid), self._bytes, strict=True)
        )
        return {
            "duration_s": self._clock() - self._began_s,
            "bytes_sent": sent,
            "bytes_received": received,
            **virtual_time_of(grid),
        }
