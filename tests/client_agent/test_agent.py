"""The agent against a fake fleet, with real TLS and a real training process."""

from __future__ import annotations

import asyncio

from .conftest import Client


def test_trains_and_answers(client: Client) -> None:
    """An instruction's params are fetched, trained on, and the result is uploaded and sent."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            assert client.count_of(await client.fleet.reply("a")) == 1
            client.fleet.send(client.instruction("b"))
            assert client.count_of(await client.fleet.reply("b")) == 2
            await client.fleet.until(lambda: len(client.fleet.replies) == 2)

    asyncio.run(scenario())
    assert client.texts("training") == ["round 3: training app counting"] * 2
