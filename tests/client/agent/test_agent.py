"""The agent against a fake fleet: what happens when nothing goes wrong."""

from __future__ import annotations

import asyncio
import time

import pytest

from meadow.client.agent.agent import Agent
from meadow.client.tools.status import status_of
from meadow.errors import StoreError
from meadow.transport import fleet_pb2 as pb

from ..conftest import Client


def test_trains_and_answers(client: Client) -> None:
    """An instruction's params are fetched, trained on, and the result is uploaded and sent."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            reply = await client.fleet.reply("a")
            assert client.count_of(reply) == 1
            values = {e.key: e.value.integer for e in reply.envelope.records[1].metrics.entries}
            assert (values["site"], values["sites"]) == (0, 5)
            client.fleet.send(client.instruction("b"))
            second = await client.fleet.reply("b")
            assert client.count_of(second) == 2
            again = {e.key: e.value.integer for e in second.envelope.records[1].metrics.entries}
            assert again["pid"] == values["pid"], "the training process stays warm"
            await client.hear("sent", 2)

    asyncio.run(scenario())
    assert client.texts("training") == ["round 3: training app counting"] * 2
    assert all(text.startswith("round 3: update sent ") for text in client.texts("sent"))
    assert client.texts("connected") == [
        f"connected to localhost:{client.fleet.port} as site-1 (node 1)"
    ]


def test_owner_sees_what_was_done(client: Client) -> None:
    """After a round, the folder tells who the client is, what ran last, and how often."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            await client.fleet.reply("a")
            assert status_of(client.directory, now_s=0.0).process is not None

    asyncio.run(scenario())
    now = status_of(client.directory, now_s=time.time())
    assert (now.name, now.node_id, now.last_instruction) == ("site-1", 1, "a")
    assert (now.rounds_today, now.process) == (1, None)


def test_same_blob_is_fetched_once(client: Client) -> None:
    """A blob that two instructions name, as training and evaluation do, is downloaded once."""

    async def scenario() -> None:
        async with client.connected():
            train = client.instruction("a")
            evaluate = pb.Instruction.FromString(train.SerializeToString())
            evaluate.id = "b"
            evaluate.envelope.metadata.message_type = "evaluate"
            client.fleet.send(train)
            client.fleet.send(evaluate)
            await client.fleet.reply("b")

    asyncio.run(scenario())
    assert len(client.fleet.downloads) == 1


def test_cancelled_in_the_queue_and_in_execution(client: Client) -> None:
    """A cancelled instruction is not answered, and what comes after it is executed."""

    async def scenario() -> None:
        async with client.connected():
            for id_ in ("a", "b", "c"):
                client.fleet.send(client.instruction(id_))
            for id_ in ("a", "b"):
                client.fleet.open.pop(id_)
                client.fleet.say(pb.ServerMessage(cancel=pb.Cancel(instruction_id=id_)))
            await client.fleet.reply("c")

    asyncio.run(scenario())
    assert {reply.instruction_id for reply in client.fleet.replies} == {"c"}


def test_second_agent_on_a_folder(client: Client) -> None:
    """Two agents would answer twice; the second is told who the first is."""

    async def scenario() -> None:
        async with client.connected():
            with pytest.raises(StoreError, match="an agent is already running on it, process"):
                await Agent(client.directory).run()

    asyncio.run(scenario())
