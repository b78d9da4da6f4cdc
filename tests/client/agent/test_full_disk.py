"""A client whose disk is full answers with that cause, and goes on once there is room."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from meadow.client.agent import agent as module
from meadow.client.agent import execution
from meadow.client.owner.database import AgentDatabase
from meadow.errors import DamageError

from ..conftest import Client


class Disk:
    """What the agent's databases lie on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.databases: list[AgentDatabase] = []
        monkeypatch.setattr(module, "AgentDatabase", self.open)

    def open(self, path: Path) -> AgentDatabase:
        """Open one."""
        self.databases.append(AgentDatabase(path))
        return self.databases[-1]

    def fill(self) -> None:
        """Let them find no room any more."""
        for database in self.databases:
            ((pages,),) = database.rows("PRAGMA page_count")
            database.rows(f"PRAGMA max_page_count = {pages}")

    def empty(self) -> None:
        """Make room."""
        for database in self.databases:
            database.rows("PRAGMA max_page_count = 100000")


def test_the_cause_is_told_and_passes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite ends the transaction by itself then: that there is none to end is not the cause."""
    disk = Disk(monkeypatch)

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a", values=4000))
            assert client.count_of(await client.fleet.reply("a")) == 1
            disk.fill()
            client.fleet.send(client.instruction("b", values=4000))
            reply = await client.fleet.reply("b")
            assert "agent.sqlite: database or disk is full" in reply.envelope.error.reason
            disk.empty()
            client.fleet.send(client.instruction("c", values=4000))
            assert client.count_of(await client.fleet.reply("c")) == 2

    asyncio.run(scenario())
    assert "agent.sqlite: database or disk is full" in client.texts("failed")[0]


def test_a_damaged_memory_is_not_believed(client: Client) -> None:
    """The agent ends with a sentence that says what is lost; it neither answers nor trains."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a", values=4000))
            await client.fleet.reply("a")
        database = AgentDatabase(client.directory / "agent.sqlite")
        database.rows("UPDATE seals SET crc32 = 1 WHERE part = 'runs'")
        database.close()
        with pytest.raises(
            DamageError, match=r"the row '7' of runs is not as it was written.*enrol"
        ):
            await client.agent().run()

    asyncio.run(scenario())


STATEFUL_APP = """
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app, server = ClientApp(), object()

@app.train()
def train(message, context):
    old = context.state.array_records.get("mine")
    total = float(old.to_numpy_ndarrays()[0][0]) if old is not None else 0.0
    context.state["mine"] = ArrayRecord([np.full(20_000, total + 1.0)])
    return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)
"""


def test_a_state_that_has_changed_on_the_disk_is_not_trained_on(client: Client) -> None:
    """What an app keeps between rounds lies in files of its own: one flipped bit is the answer."""
    (client.app / "counting.py").write_text(STATEFUL_APP)

    async def scenario() -> None:
        async with client.connected():
            for id_ in ("a", "b"):
                client.fleet.send(client.instruction(id_, values=4000))
                assert not (await client.fleet.reply(id_)).envelope.HasField("error")
            (file,) = (client.directory / "runs" / "7" / "state").iterdir()
            data = bytearray(file.read_bytes())
            data[-3] ^= 16
            file.write_bytes(data)
            client.fleet.send(client.instruction("c", values=4000))
            reason = (await client.fleet.reply("c")).envelope.error.reason
            assert "has changed on the disk since it was written there" in reason

    asyncio.run(scenario())


def test_the_owners_bound_of_the_disk(client: Client) -> None:
    """What is kept for reuse makes room; an instruction that does not fit all the same is refused with the
    numbers, before it is counted."""
    values = 1 << 17
    blob_bytes = 4 * values

    def used() -> int:
        return execution._used_bytes(client.directory)

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a", values=values))
            await client.fleet.reply("a")
            old = next((client.directory / "blobs").iterdir())
        client.configure(f"[policy]\ndisk_bytes_max = {used() + 2 * blob_bytes}")
        async with client.connected():
            client.fleet.send(client.instruction("b", values=values))
            assert client.count_of(await client.fleet.reply("b")) == 2
            assert not old.exists()
        rows = AgentDatabase(client.directory / "agent.sqlite").rows("SELECT * FROM spent")
        client.configure(f"[policy]\ndisk_bytes_max = {used()}")
        async with client.connected():
            client.fleet.send(client.instruction("c", values=8 * values))
            refused = (await client.fleet.reply("c")).refused
            assert "policy.disk_bytes_max is" in refused
            assert f"needs {2 * 8 * blob_bytes + 160} more" in refused
            client.fleet.send(client.instruction("d", values=3))
            assert client.count_of(await client.fleet.reply("d")) == 3
        assert len(
            AgentDatabase(client.directory / "agent.sqlite").rows("SELECT * FROM spent")
        ) == (len(rows) + 1)

    asyncio.run(scenario())


def test_a_disk_that_is_too_small_for_an_instruction(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept for reuse makes room; a disk without room for the tensors and the answer refuses before anything
    is fetched or counted, with the numbers and the place."""
    values = 1 << 17
    free = 16 * 4 * values
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a", values=4 * values))
            assert client.count_of(await client.fleet.reply("a")) == 1
            (old,) = (client.directory / "blobs").iterdir()
            client.fleet.send(client.instruction("b", values=8 * values + 1))
            refused = (await client.fleet.reply("b")).refused
            assert f"the disk of {client.directory} has {free} bytes free: make room" in refused
            assert f"needs {2 * 4 * (8 * values + 1) + 160} more" in refused
            assert not old.exists() and not list((client.directory / "blobs").iterdir())
            client.fleet.send(client.instruction("c", values=values))
            assert client.count_of(await client.fleet.reply("c")) == 2
        spent = AgentDatabase(client.directory / "agent.sqlite").rows("SELECT * FROM spent")
        assert len(spent) == 2

    asyncio.run(scenario())
