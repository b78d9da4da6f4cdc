"""What the adapter asks of a grid with a virtual clock, and does without on any other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict

from meadow.flower.messages import params_to_arrays
from meadow.strategies.algorithms.client_memory import ClientMemory
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.cohort import draw_cohort
from meadow.strategies.rounds.plan import RoundPlan
from meadow.strategies.rounds.virtual_time import begin_after, draw_on, late_on, virtual_time_of

from ..conftest import MemoryGrid, MemoryRecorder

PARAMS = {"w": np.zeros(2, np.float32)}


class TimedGrid(MemoryGrid):
    """Every batch takes ten seconds; of the clients only the first two are there."""

    def __init__(self, client: Any, nodes: Iterable[int]) -> None:
        super().__init__(client, nodes)
        self.now_s = 0.0
        self.late: list[int] = []

    def begin_at(self, now_s: float) -> None:
        self.now_s = now_s

    def draw_cohort(self, **how: Any) -> list[int]:
        return draw_cohort(self.nodes[:2], **how)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        self.now_s += 10
        return super().send_and_receive(messages, timeout=timeout)


def trained(message: Message) -> Any:
    """Answer with the params as they were."""
    arrays = message.content.array_records["arrays"]
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})


def test_rows_say_the_virtual_time() -> None:
    """A round of training and evaluation takes twenty seconds; a run goes on where it was."""
    recorder, plan = MemoryRecorder(), RoundPlan(min_clients=2)
    for rounds in (2, 3):
        strategy = FederatedStrategy(fedavg(), plan, recorder=recorder)
        strategy.start(TimedGrid(trained, [1, 2, 3]), params_to_arrays(PARAMS), num_rounds=rounds)
    assert [row["virtual_s"] for row in recorder.rows] == [20.0, 40.0, 60.0]
    assert [row["clients"] for row in recorder.rows] == [2, 2, 2]


def test_without_a_clock_rows_say_nothing_of_it() -> None:
    """Flower's grids, and a real fleet's, have no virtual time."""
    recorder = MemoryRecorder()
    strategy = FederatedStrategy(fedavg(), RoundPlan(min_clients=2), recorder=recorder)
    strategy.start(MemoryGrid(trained, [1, 2, 3]), params_to_arrays(PARAMS), num_rounds=1)
    assert "virtual_s" not in recorder.rows[0] and recorder.rows[0]["clients"] == 3


def test_a_new_run_begins_at_zero() -> None:
    """Also on a grid whose clock has gone on; and where the rows know no time."""
    grid = TimedGrid(trained, [1])
    for history, now_s in (([], 0.0), ([{"virtual_s": 7.5}], 7.5), ([{"round": 1}], 0.0)):
        grid.now_s = 99.0
        begin_after(grid, history)
        assert grid.now_s == now_s


def test_plain_grids_do_none_of_it() -> None:
    """The cohort is drawn among those present, nobody is late, and there is no time."""
    grid, plan = MemoryGrid(trained, range(1, 9)), RoundPlan(cohort=3, seed=5)
    expected = draw_cohort(range(1, 9), cohort=3, at_least=2, seed=5, round_number=4)
    assert draw_on(grid, range(1, 9), plan, ClientMemory.empty(), 4) == expected
    assert (late_on(grid), virtual_time_of(grid)) == ([], {})
    begin_after(grid, [{"virtual_s": 3.0}])
