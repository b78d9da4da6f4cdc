"""Bounds of an agent that nothing but a test of their own holds: what a server says takes up no more."""

from __future__ import annotations

import asyncio
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from meadow.client.agent import agent, state
from meadow.client.agent.assignments import INSTRUCTIONS_MAX, Assignments
from meadow.client.agent.clock import SKEW_S_MAX, clock_fault
from meadow.client.agent.state import AgentState
from meadow.client.agent.training import REASON_CHARS_MAX, failure
from meadow.client.owner import ledger
from meadow.client.owner.database import AgentDatabase
from meadow.client.owner.ledger import Ledger
from meadow.client.owner.sent_log import Outgoing, SentFor
from meadow.transport import fleet_pb2 as pb
from meadow.transport.fields import ID_CHARS_MAX


def test_instructions_that_wait() -> None:
    """Those beyond the bound are refused, and say so; the same one twice is one."""
    said: list[pb.Reply] = []

    class Sender(dict[str, Any]):
        async def try_to_send(self, answer: Outgoing) -> None:
            said.append(answer.reply)

    nothing: Any = {}

    async def flood() -> None:
        assignments = Assignments(nothing, Sender(), nothing, nothing, nothing, nothing)  # type: ignore[arg-type]
        for number in range(2 * INSTRUCTIONS_MAX):
            for _ in range(2):
                await assignments.accept(pb.Instruction(id=str(number)))

    asyncio.run(flood())
    refused = {reply.instruction_id for reply in said}
    assert refused == {str(n) for n in range(INSTRUCTIONS_MAX, 2 * INSTRUCTIONS_MAX)}
    assert "64 instructions are waiting already" in said[0].refused


@pytest.mark.parametrize("id_", ["", "x" * (ID_CHARS_MAX + 1)])
def test_ids_that_are_none(id_: str) -> None:
    """They are refused before anything is kept by them."""
    nothing: Any = {}

    async def scenario() -> None:
        with pytest.raises(Exception, match=f"must have 1 to {ID_CHARS_MAX} characters"):
            await Assignments(*[nothing] * 6).accept(pb.Instruction(id=id_))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("told", "kept"),
    [(0.0, agent.LEASE_S_MIN), (-1.0, agent.LEASE_S_MIN), (30.0, 30.0), (math.inf, agent.LEASE_S_MAX),
     (math.nan, agent.LEASE_S_MAX), (1e300, agent.LEASE_S_MAX)],
)  # fmt: skip
def test_a_lease(told: float, kept: float) -> None:
    """A server's word for how often a client says that it is at work is kept within bounds."""
    assert agent.bounded_lease_s(told) == kept


def test_refusals_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest, however long an app's name is."""
    monkeypatch.setattr(ledger, "REFUSALS_MAX", 3)
    with closing(AgentDatabase(tmp_path / "agent.sqlite")) as database:
        book = Ledger(database)
        for number in range(10):
            asked = pb.Instruction(id=str(number), app=pb.App(name="x" * 1000))
            book.refuse(asked, "no", now_s=0.0)
        rows = database.rows("SELECT * FROM refusals ORDER BY rowid")
    assert [row["instruction_id"] for row in rows] == ["7", "8", "9"]
    assert {len(row["app"]) for row in rows} == {ledger.APP_CHARS_MAX}


def test_runs_and_replies_that_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that begins run after run, and confirms nothing, does not fill the disk."""
    monkeypatch.setattr(state, "RUNS_MAX", 3)
    monkeypatch.setattr(state, "REPLIES_MAX", 4)
    with closing(AgentDatabase(tmp_path / "agent.sqlite")) as database:
        memory = AgentState(database, tmp_path)
        for run in range(1, 9):
            asked = pb.Instruction(id=f"first of {run}", run_id=run)
            memory.reply_dir(run, asked.id).mkdir(parents=True)
            memory.record(asked, pb.Envelope(), b"", SentFor.of(asked))
        assert {int(row["run_id"]) for row in database.rows("SELECT * FROM runs")} == {6, 7, 8}
        assert {path.name for path in (tmp_path / "runs").iterdir()} == {"6", "7", "8"}
        for number in range(20):
            asked = pb.Instruction(id=f"{number}", run_id=8)
            memory.record(asked, pb.Envelope(), b"", SentFor.of(asked))
        assert len([each for each in memory.unacknowledged() if each.about.run_id == 8]) <= 5


def test_what_a_failure_says() -> None:
    """A reason is cut where a message could not carry it."""
    assert len(failure(pb.Instruction(), 1, "x" * 100_000).error.reason) == REASON_CHARS_MAX


@pytest.mark.parametrize("skew_s", [0.0, SKEW_S_MAX, -SKEW_S_MAX])
def test_clocks_that_agree(skew_s: float) -> None:
    """A minute either way is nothing, whatever is more is told."""
    assert clock_fault(skew_s) is None
    assert clock_fault(math.copysign(1e300, skew_s)) is not None
