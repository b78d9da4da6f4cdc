"""What the server cancels: a commit that has begun is carried through, and nothing is kept of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from meadow.client.agent import assignments
from meadow.client.agent.state import AgentState
from meadow.transport import fleet_pb2 as pb

from ..conftest import Client


def cancel(id_: str) -> pb.ServerMessage:
    return pb.ServerMessage(cancel=pb.Cancel(instruction_id=id_, reason="test"))


def test_a_commit_that_has_begun_is_waited_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes next finds the state that the cancelled instruction left, not the one before."""
    begun, go_on, record = threading.Event(), threading.Event(), AgentState.record

    def slow(self: AgentState, instruction: pb.Instruction, *arguments: Any) -> Any:
        if instruction.id == "a":
            begun.set()
            assert go_on.wait(60)
        return record(self, instruction, *arguments)

    monkeypatch.setattr(AgentState, "record", slow)
    monkeypatch.setattr(assignments, "CANCEL_GRACE_S", 0.0)

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            await asyncio.to_thread(begun.wait, 60)
            client.fleet.say(cancel("a"))
            await client.hear("cancelled")
            client.fleet.send(client.instruction("b"))
            await asyncio.sleep(0.2)  # what does not wait would be past the old state by now
            go_on.set()
            assert client.count_of(await client.fleet.reply("b")) == 2

    asyncio.run(scenario())


def test_nothing_is_kept_of_invented_cancellations(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and however long."""
    noted: list[str] = []
    monkeypatch.setattr(AgentState, "acknowledge", lambda self, id_: noted.append(id_))

    async def scenario() -> None:
        async with client.connected():
            for number in range(100):
                client.fleet.say(cancel(f"{number}" * 1000))
            client.fleet.send(client.instruction("a"))
            await client.fleet.reply("a")
            await client.hear("sent")

    asyncio.run(scenario())
    assert noted == ["a"]
