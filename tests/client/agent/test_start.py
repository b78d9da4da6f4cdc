"""`meadow client start` as a process: what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from ..conftest import Client


async def start(client: Client) -> asyncio.subprocess.Process:
    """Start the agent of an enrolled client and wait until it is connected."""
    await client.fleet.start()
    client.enroll()
    command = ["-m", "meadow", "client", "start", "--dir", str(client.directory)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        "--format",
        "json",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await client.fleet.until(lambda: client.fleet.hellos)
    return process


def test_sigterm(client: Client) -> None:
    """SIGTERM stops the agent cleanly; every line that it printed is one JSON object."""

    async def scenario() -> tuple[int | None, bytes]:
        process = await start(client)
        client.fleet.send(client.instruction("a"))
        await client.fleet.reply("a")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            out, _ = await process.communicate()
        await client.fleet.stop()
        return process.returncode, out

    code, out = asyncio.run(scenario())
    events = [json.loads(line)["event"] for line in out.splitlines()]
    assert code == 0
    assert [event for event in events if event != "sent"] == ["connected", "training", "stopped"]


def test_revoked(client: Client) -> None:
    """A revoked client says so in one line and exits with 1."""

    async def scenario() -> tuple[int | None, bytes]:
        process = await start(client)
        client.fleet.revoked = True
        client.fleet.disconnect()
        async with asyncio.timeout(60):
            _, err = await process.communicate()
        await client.fleet.stop()
        return process.returncode, err

    code, err = asyncio.run(scenario())
    assert code == 1
    assert err.decode().splitlines() == ["meadow: this client was revoked"]
