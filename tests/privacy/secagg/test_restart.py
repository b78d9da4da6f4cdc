"""A server that dies in the middle of a session, over a grid that repeats what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from flwr.app import Context, Message

from meadow.privacy.secagg.client import session as secure_session
from meadow.privacy.secagg.client.identity import SecureIdentity, simulated_identity
from meadow.privacy.secagg.server.grid import SecureAggregationGrid
from meadow.privacy.secagg.terms.terms import ANSWERS, IDENTITY

from .arena import KINDS, TERMS, Arena, combined, model, require_mean


class Death(BaseException):
    """The server is killed."""


class Journal:
    """Repeats a step's replies, as the journal of a server does: by group, type and number."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid
        self.recorded: dict[tuple[str, str, int], list[Message]] = {}
        self.pushes: Counter[tuple[str, str]] = Counter()
        self.dies_at = ""
        self.dies_before = False

    def restart(self) -> None:
        """Begin anew, with what was recorded."""
        self.pushes.clear()
        self.dies_at = ""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        batch = list(messages)
        head = batch[0].metadata
        name = (head.group_id, head.message_type)
        key = (*name, self.pushes[name])
        self.pushes[name] += 1
        dying = head.message_type == self.dies_at
        if dying and self.dies_before:
            raise Death
        if key not in self.recorded:
            self.recorded[key] = list(self.grid.send_and_receive(batch, timeout=timeout))
        if dying:
            raise Death
        yield from self.recorded[key]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restarted_server_goes_on_with_the_same_session(kind: str, before: bool) -> None:
    """Killed before or after any step: every client answers each step once, the sum is exact."""
    arena = Arena(5)
    journal = Journal(arena.wire)
    journal.dies_at, journal.dies_before = kind, before
    with pytest.raises(Death):
        list(SecureAggregationGrid(journal, TERMS).send_and_receive(arena.instructions()))  # type: ignore[arg-type]
    journal.restart()
    grid = SecureAggregationGrid(journal, TERMS)  # type: ignore[arg-type]
    replies = list(grid.send_and_receive(arena.instructions()))
    require_mean(combined(replies), range(1, 6), 1, model())
    asked = Counter(
        (message.metadata.dst_node_id, message.metadata.message_type)
        for message in arena.wire.asked
    )
    assert set(asked.values()) == {1} and len(asked) == 5 * len(KINDS)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["evaluate.secure", *ANSWERS])
def test_a_server_restarted_in_an_evaluation(kind: str, before: bool) -> None:
    """It goes through the round's training again, and hears there who takes part."""
    arena = Arena(4)
    journal = Journal(arena.wire)
    grid = SecureAggregationGrid(journal, TERMS)  # type: ignore[arg-type]
    combined(grid.send_and_receive(arena.instructions()))
    journal.dies_at, journal.dies_before = kind, before
    with pytest.raises(Death):
        list(grid.send_and_receive(arena.instructions(kind="evaluate")))
    journal.restart()
    grid = SecureAggregationGrid(journal, TERMS)  # type: ignore[arg-type]
    combined(grid.send_and_receive(arena.instructions()))
    reply = combined(grid.send_and_receive(arena.instructions(kind="evaluate")))
    assert reply.content["metrics"]["combined-clients"] == [1, 2, 3, 4]
    asked = Counter(message.metadata.message_type for message in arena.wire.asked)
    twice = dict.fromkeys(ANSWERS, 8)
    assert asked == {IDENTITY: 4, "train.secure": 4, "evaluate.secure": 4, **twice}


def test_a_server_that_forgot_gets_no_second_sum() -> None:
    """Without a journal it begins anew, and clients that have masked their vector refuse."""
    arena = Arena(5)
    journal = Journal(arena.wire)
    journal.dies_at, journal.dies_before = "query.secure_unmask", True
    with pytest.raises(Death):
        list(SecureAggregationGrid(journal, TERMS).send_and_receive(arena.instructions()))  # type: ignore[arg-type]
    replies = arena.round()
    assert all(reply.has_error() for reply in replies)
    assert "not repeated" in str(replies[0].error.reason)


def test_clients_in_other_processes_for_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not seen a session goes through it again, to the same answers."""
    monkeypatch.setattr(secure_session, "LIVE_MAX", 0)
    arena = Arena(5)
    require_mean(combined(arena.round()), range(1, 6), 1, model())
    assert not secure_session._live


def test_a_process_forgets_sessions_that_are_over() -> None:
    """What stays in memory is of sessions that go on."""
    before = len(secure_session._live)
    require_mean(combined(Arena(5).round()), range(1, 6), 1, model())
    assert len(secure_session._live) == before


def test_an_owner_who_asks_for_more_in_the_middle() -> None:
    """A session that is still in memory ends as well, once its owner wants a larger cohort."""
    usual, asked = simulated_identity(7), Counter[int]()

    def identify(context: Context) -> SecureIdentity:
        identity = usual(context)
        asked[context.node_id] += 1
        if asked[context.node_id] <= 2:  # who are you, and begin
            return identity
        return replace(identity, minimum=replace(identity.minimum, clients=9))

    replies = Arena(5, identify=identify).round()
    assert len(replies) == 5 and all(reply.has_error() for reply in replies)
    assert set(asked.values()) == {3}
