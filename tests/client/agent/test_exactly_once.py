"""kill -9 of the agent at every step of an instruction: it counts exactly once."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import pytest

from meadow.client.tools.status import status_of

from ..conftest import BLOB_VALUES, Client
from ..killed_agent import Step

BESIDE_MESSAGES = Step.AFTER_FETCHED, Step.AFTER_UPLOADED


@pytest.mark.parametrize(
    ("step", "values"),
    [(step, BLOB_VALUES) for step in Step]
    + [(step, 3) for step in Step if step not in BESIDE_MESSAGES],
)
def test_killed(client: Client, step: Step, values: int) -> None:
    """The next agent completes what the killed one began; the app's state counts it once."""

    async def scenario() -> None:
        await client.fleet.start()
        client.enroll()
        client.fleet.send(client.instruction("a", values))
        script = Path(__file__).parents[1] / "killed_agent.py"
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), str(client.directory), step
        )
        async with asyncio.timeout(60):
            assert await process.wait() == -signal.SIGKILL
        async with client.running():
            client.fleet.send(client.instruction("b", values))
            assert client.count_of(await client.fleet.reply("b")) == 2
            assert client.count_of(await client.fleet.reply("a")) == 1
        await client.fleet.stop()

    asyncio.run(scenario())
    now = status_of(client.directory, now_s=time.time())
    assert now.rounds_today == 2
    assert now.last_instruction == "b"
