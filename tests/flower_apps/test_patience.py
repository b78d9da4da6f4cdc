"""An app that only waits is waited for, told of, and ended at last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from meadow.errors import QuorumError
from meadow.flower.messages import identify_process
from meadow.flower_apps import patience as flower_patience
from meadow.flower_apps.patience import Patience
from meadow.flower_apps.result import ObservedGrid

from .test_result import FakeGrid, honest, train_messages

identify_process(run_id=1, node_id=0)


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("simulated", "bound_s", "remedy"),
    [(True, 60, "simulate more with --clients"), (False, 86_400, "meadow site list")],
)
def test_looking_for_clients_ends(simulated: bool, bound_s: int, remedy: str) -> None:
    """After a minute where no more will come, after a day where they may; it is told meanwhile, not
    with every look."""
    clock, told = Clock(), list[int]()
    patience = Patience(simulated=simulated, tell=told.append, clock=clock)
    looks = 0
    with pytest.raises(QuorumError, match=rf"look for clients: there are 2, .*{remedy}"):
        while True:
            patience.saw(2)
            looks += 1
            clock.now_s += 1
    assert looks == bound_s + 1
    assert set(told) == {2}
    assert 1 <= len(told) <= 1 + bound_s / 60


def test_whoever_does_something_else_may_look_again() -> None:
    """Messages, replies, and work of its own between two looks are no waiting."""
    clock = Clock()
    patience = Patience(simulated=True, clock=clock)
    for wait_s, goes_on in ((50, True), (1000, False), (61, False)) * 5:
        patience.saw(1)
        clock.now_s += wait_s
        if goes_on:
            patience.goes_on()
    patience.saw(1)


class InProcess(FakeGrid):
    """A grid whose clients live in this process."""

    def execute_pushed(self) -> None:
        """Nothing is held back."""


class Silent(FakeGrid):
    """Its clients never answer."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return []


def waits(grid: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[ObservedGrid, Clock]:
    observed, clock = ObservedGrid(grid, on_round=lambda row: None), Clock()
    monkeypatch.setattr(observed.patience, "_clock", clock)
    return observed, clock


def test_an_app_in_a_loop_for_clients_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """`while len(grid.get_node_ids()) < 3` with two clients."""
    for look in ("get_node_ids", "get_nodes"):
        observed, clock = waits(InProcess(honest), monkeypatch)
        with pytest.raises(QuorumError, match="look for clients: there are 2"):
            while len(list(getattr(observed, look)())) < 3:
                clock.now_s += 3


def test_an_app_in_a_loop_for_replies_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for more replies than it sent messages."""
    observed, clock = waits(InProcess(honest), monkeypatch)
    ids = list(observed.push_messages(train_messages([1, 2], 1)))
    replies: list[Message] = []
    with pytest.raises(QuorumError, match="look for replies, and none is under way"):
        while len(replies) < 3:
            left = [
                id_ for id_ in ids if id_ not in {r.metadata.reply_to_message_id for r in replies}
            ]
            replies += list(observed.pull_messages(left))
            clock.now_s += 3


def test_replies_that_are_under_way_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their messages' time to live bounds that."""
    observed, clock = waits(Silent(honest), monkeypatch)
    ids = list(observed.push_messages([Message(RecordDict(), 1, "train")]))
    for _ in range(100_000):
        assert list(observed.pull_messages(ids)) == []
        clock.now_s += 3


def test_the_bounds() -> None:
    """Flower's older strategies wait a day, too."""
    from inspect import signature

    from flwr.server import SimpleClientManager

    assert flower_patience.SIMULATED_S == 60
    timeout = signature(SimpleClientManager.wait_for).parameters["timeout"].default
    assert timeout == flower_patience.DEPLOYED_S
