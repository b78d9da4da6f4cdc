"""Whatever breaks between client and server, an instruction is executed and answered once."""

from __future__ import annotations

import asyncio

import pytest

from meadow.client.agent import delivery
from meadow.transport.blobs import blob_path

from ..conftest import Client


def test_redelivered_while_in_hand(client: Client) -> None:
    """An instruction that arrives twice before it is answered is executed and answered once."""

    async def scenario() -> None:
        async with client.connected():
            instruction = client.instruction("a")
            client.fleet.send(instruction)
            client.fleet.send(instruction)
            client.fleet.send(client.instruction("b"))
            assert client.count_of(await client.fleet.reply("b")) == 2

    asyncio.run(scenario())
    assert [reply.instruction_id for reply in client.fleet.replies] == ["a", "b"]


def test_lost_acknowledgement(client: Client) -> None:
    """A reply whose acknowledgement is lost is sent again after the reconnect, not made again."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.acks_lost = 1
            client.fleet.send(client.instruction("a"))
            assert client.count_of(await client.fleet.reply("a", count=2)) == 1
            client.fleet.send(client.instruction("b"))
            assert client.count_of(await client.fleet.reply("b")) == 2

    asyncio.run(scenario())
    first, second = (r for r in client.fleet.replies if r.instruction_id == "a")
    assert first == second
    assert len(client.texts("training")) == 2


def test_redelivered_after_a_restart_of_the_agent(client: Client) -> None:
    """A new agent process answers an old instruction from its record."""

    async def scenario() -> None:
        instruction = client.instruction("a")
        async with client.connected():
            client.fleet.send(instruction)
            first = await client.fleet.reply("a")
        client.fleet.open["a"] = instruction
        async with client.connected():
            assert await client.fleet.reply("a", count=2) == first
            client.fleet.send(client.instruction("b"))
            assert client.count_of(await client.fleet.reply("b")) == 2, "the state was kept"

    asyncio.run(scenario())
    assert len(client.texts("training")) == 2


def test_broken_upload_goes_on_where_it_stopped(client: Client) -> None:
    """After a line broke in the middle of an upload, the rest is sent, and nothing twice."""
    chunk = 1 << 20

    async def scenario() -> None:
        async with client.connected():
            client.fleet.upload_breaks_after_bytes = 2 * chunk
            client.fleet.send(client.instruction("a", values=chunk))
            assert client.count_of(await client.fleet.reply("a")) == 1

    asyncio.run(scenario())
    offsets = [offset for _, offset in client.fleet.uploads]
    assert offsets[:3] == [0, 0, 2 * chunk], "sent, asked, and gone on with"
    assert offsets[2:] == sorted(set(offsets[2:]))


def test_server_restarts_in_the_middle_of_an_upload(client: Client) -> None:
    """The agent finds the restarted server, asks how much it has, and sends the rest."""
    chunk = 1 << 20

    async def scenario() -> None:
        async with client.connected():
            client.fleet.upload_breaks_after_bytes = chunk
            client.fleet.send(client.instruction("a", values=chunk))
            await client.fleet.until(lambda: client.fleet.upload_breaks_after_bytes is None)
            await client.fleet.stop()
            await client.fleet.start()
            assert client.count_of(await client.fleet.reply("a")) == 1

    asyncio.run(scenario())
    assert client.fleet.uploads[-1][1] >= chunk
    assert len(client.fleet.hellos) == 2
    assert len(client.texts("training")) == 1


def test_broken_download_goes_on_where_it_stopped(client: Client) -> None:
    """After a line broke in the middle of a download, only the rest is asked for."""
    chunk = 1 << 20

    async def scenario() -> None:
        async with client.connected():
            client.fleet.download_breaks_after_bytes = 2 * chunk
            client.fleet.send(client.instruction("a", values=chunk))
            assert client.count_of(await client.fleet.reply("a")) == 1

    asyncio.run(scenario())
    assert [offset for _, offset in client.fleet.downloads] == [0, 2 * chunk]


def test_large_reply_is_sent_as_a_file(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that is too large for a message is uploaded beside its tensors, and named."""
    monkeypatch.setattr(delivery, "REPLY_BYTES_MAX", 10)

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            reply = await client.fleet.reply("a")
            file = blob_path(client.fleet.received, reply.file.id)
            reply.envelope.ParseFromString(file.read_bytes())
            assert client.count_of(reply) == 1
            await client.hear("sent")

    asyncio.run(scenario())
    assert len(client.texts("sent")) == 1


def test_reconnects(client: Client) -> None:
    """A stream that ends is opened again, and what the server still wants is done then."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.disconnect()
            await client.fleet.until(lambda: len(client.fleet.hellos) == 2)
            client.fleet.send(client.instruction("a"))
            await client.fleet.reply("a")

    asyncio.run(scenario())
    assert len(client.texts("disconnected")) == 1


def test_reply_that_is_no_longer_wanted(client: Client) -> None:
    """If the server does not take a reply's files any more, the agent lets go of the reply."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.gone.add("a")
            client.fleet.send(client.instruction("a"))
            await client.hear("training")
            client.fleet.send(client.instruction("b"))
            assert client.count_of(await client.fleet.reply("b")) == 2

    asyncio.run(scenario())
    assert {reply.instruction_id for reply in client.fleet.replies} == {"b"}
    assert not client.texts("failed")


def test_reply_that_the_server_refuses(client: Client) -> None:
    """If the server refuses a reply's files, it is told that there will be none."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.blob_bytes_max = 10
            client.fleet.send(client.instruction("a"))
            error = (await client.fleet.reply("a")).envelope.error
            assert "exceeds 10" in error.reason

    asyncio.run(scenario())


def test_blob_that_is_gone(client: Client) -> None:
    """An instruction whose params the server no longer has is dropped, and the next one done."""

    async def scenario() -> None:
        async with client.connected():
            instruction = client.instruction("a")
            instruction.envelope.records[0].arrays.blob.id = "not-there"
            client.fleet.send(instruction)
            client.fleet.send(client.instruction("b"))
            await client.fleet.reply("b")

    asyncio.run(scenario())
    assert {reply.instruction_id for reply in client.fleet.replies} == {"b"}


def test_hostile_names(client: Client) -> None:
    """Ids that are paths lead nowhere: a blob's is refused, an instruction's is only a key."""

    async def scenario() -> None:
        async with client.connected():
            instruction = client.instruction("../../a")
            client.fleet.send(instruction)
            assert client.count_of(await client.fleet.reply("../../a")) == 1
            instruction = client.instruction("b")
            instruction.envelope.records[0].arrays.blob.id = "../../../etc/passwd"
            client.fleet.send(instruction)
            assert "is no blob id" in (await client.fleet.reply("b")).envelope.error.reason

    asyncio.run(scenario())
    assert not client.fleet.downloads[1:]
