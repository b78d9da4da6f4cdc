"""Whatever happens in the training process, the agent goes on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from meadow.client.agent.training import APP_RAISED
from meadow.transport import fleet_pb2 as pb

from ..conftest import Client


def test_app_that_raises(client: Client) -> None:
    """An exception in the app is the reply's error, and the next instruction is executed."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a", run_config={"raise": True}))
            failed = await client.fleet.reply("a")
            assert failed.envelope.error.code == APP_RAISED
            assert failed.envelope.error.reason.startswith("ValueError: no data today (counting.py")
            client.fleet.send(client.instruction("b"))
            assert client.count_of(await client.fleet.reply("b")) == 1, "its state was not kept"

    asyncio.run(scenario())
    assert "counting.py" in (client.directory / "training.log").read_text()


@pytest.mark.parametrize("deaths", [1, 2])
def test_training_process_is_killed(client: Client, deaths: int) -> None:
    """An instruction whose process is killed is executed again, from the same state."""
    file = client.folder / "deaths"
    file.write_text(str(deaths))
    client.configure(f'[data]\ndeaths = "{file}"')

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            assert client.count_of(await client.fleet.reply("a")) == 1

    asyncio.run(scenario())
    assert file.read_text() == "0"


def test_training_process_dies_every_time(client: Client) -> None:
    """After three deaths in a row the server is told how the process died."""
    file = client.folder / "deaths"
    file.write_text("3")
    client.configure(f'[data]\ndeaths = "{file}"')

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            error = (await client.fleet.reply("a")).envelope.error
            assert "3 times in a row" in error.reason
            assert "was killed by SIGKILL" in error.reason
            client.fleet.send(client.instruction("b"))
            assert client.count_of(await client.fleet.reply("b")) == 1

    asyncio.run(scenario())


def test_training_process_that_outgrows_its_memory(client: Client) -> None:
    """A process beyond the owner's limit is not kept for the next instruction."""
    client.configure("[device]\nmemory_mb_max = 64")

    async def scenario() -> list[int]:
        async with client.connected():
            pids = []
            for id_ in ("a", "b"):
                client.fleet.send(client.instruction(id_))
                reply = await client.fleet.reply(id_)
                entries = reply.envelope.records[1].metrics.entries
                pids.append(next(e.value.integer for e in entries if e.key == "pid"))
            return pids

    first, second = asyncio.run(scenario())
    assert first != second


def test_training_that_holds_too_much_memory(client: Client) -> None:
    """It is stopped while it runs, and the server is told the bound."""
    file = client.folder / "waits"
    client.configure(f'[data]\nwait = "{file}"\n[device]\nmemory_mb_max = 64')

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            error = (await client.fleet.reply("a")).envelope.error
            assert "more than device.memory_mb_max = 64" in error.reason
        assert not Path(f"/proc/{file.read_text()}").exists()

    asyncio.run(scenario())


@pytest.mark.parametrize("kept_warm_s", [0.0, 0.2])
def test_an_idle_process_is_let_go(client: Client, kept_warm_s: float) -> None:
    """Its memory is free again; the next instruction has a new process, and the same state."""
    client.configure(f"[device]\nkept_warm_s = {kept_warm_s}")

    async def scenario() -> None:
        pids = []
        async with client.connected():
            for number, id_ in enumerate("abc", start=1):
                client.fleet.send(client.instruction(id_))
                reply = await client.fleet.reply(id_)
                assert client.count_of(reply) == number
                entries = reply.envelope.records[1].metrics.entries
                pids.append(next(e.value.integer for e in entries if e.key == "pid"))
                async with asyncio.timeout(60):
                    while Path(f"/proc/{pids[-1]}").exists():
                        await asyncio.sleep(0.01)
        assert len({*pids}) == 3

    asyncio.run(scenario())
    assert not client.texts("warning")


def open_and_read(fifo: Path) -> int:
    """Wait until the app has written its process id."""
    return int(fifo.read_text())


def test_stopped_in_training(client: Client) -> None:
    """Stopping the agent ends the training process; the next agent executes the work anew."""
    client.configure(f'[data]\nwait = "{client.folder / "go"}"')

    async def scenario() -> int:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            async with asyncio.timeout(60):
                pid = await asyncio.to_thread(open_and_read, client.folder / "go")
        client.configure()
        async with client.connected():
            assert client.count_of(await client.fleet.reply("a")) == 1
        return pid

    os.mkfifo(client.folder / "go")
    pid = asyncio.run(scenario())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_cancelled_in_training(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that goes on after it was cancelled is ended, so that the next can begin."""
    monkeypatch.setattr("meadow.client.agent.assignments.CANCEL_GRACE_S", 0.0)
    client.configure(f'[data]\nwait = "{client.folder / "go"}"')

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            async with asyncio.timeout(60):
                await asyncio.to_thread(open_and_read, client.folder / "go")
            client.configure()
            client.fleet.open.pop("a")
            client.fleet.say(pb.ServerMessage(cancel=pb.Cancel(instruction_id="a", reason="late")))
            client.fleet.send(client.instruction("b"))
            assert client.count_of(await client.fleet.reply("b")) == 1

    os.mkfifo(client.folder / "go")
    asyncio.run(scenario())
    assert client.texts("cancelled") == ["round 3: cancelled: late"]
