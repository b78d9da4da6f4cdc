"""Networks as they are: several ways to a server, idle connections that are cut, forgotten lines."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from idle_proxy import IdleProxy

from meadow.client.agent import connection
from meadow.client.agent.reconnecting import Routes
from meadow.client.agent.uplink import RETRY_S_MIN
from meadow.client.tools.doctor import examine
from meadow.client.tools.status import status_of

from ..conftest import Client


class Middlebox:
    """Passes connections on to a port of this machine, as NAT and TCP proxies do.

    Attributes:
        port: where it listens.
        passed: how often bytes came from a client.
    """

    def __init__(self) -> None:
        self.port, self.passed = 0, 0
        self._lines: list[tuple[list[asyncio.Task[None]], list[asyncio.StreamWriter]]] = []
        self._more = asyncio.Event()

    @asynccontextmanager
    async def before(self, target: int) -> AsyncIterator[None]:
        """Listen for the length of the block."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
            both = self._carry(reader, far_writer, True), self._carry(far_reader, writer, False)
            tasks = [asyncio.ensure_future(each) for each in both]
            self._lines.append((tasks, [writer, far_writer]))

        listener = await asyncio.start_server(accept, "127.0.0.1", self.port)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            listener.close()
            self.cut()

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, upwards: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                self.passed += upwards
                self._more.set()
                sink.write(data)
                await sink.drain()
        sink.close()

    def forget(self) -> None:
        """Pass nothing more on over the open connections, and tell neither end."""
        for tasks, _ in self._lines:
            for task in tasks:
                task.cancel()

    def cut(self) -> None:
        """End the open connections: a proxy at its idle limit."""
        self.forget()
        for _, writers in self._lines:
            for writer in writers:
                writer.close()
        self._lines.clear()

    async def passes(self, more: int) -> None:
        """Wait until bytes came from clients so many times more."""
        count = self.passed + more
        async with asyncio.timeout(60):
            while self.passed < count:
                self._more.clear()
                await self._more.wait()


def lead(client: Client, *ports: int) -> None:
    """Have the agent reach its server at ports of this machine."""
    client.configure(f"[server]\naddresses = {[f'localhost:{port}' for port in ports]}")


def test_several_addresses(client: Client) -> None:
    """The agent goes to the next address when one does not answer, keeps it, and nothing is lost."""

    async def scenario() -> list[str]:
        await client.fleet.start()
        client.enroll()
        first, second = Middlebox(), Middlebox()
        async with second.before(client.fleet.port):
            async with first.before(client.fleet.port):
                lead(client, first.port, second.port)
                async with client.running():
                    await client.hear("connected", 1)
                    client.fleet.send(client.instruction("a"))
                    await client.fleet.reply("a")
            async with client.running():
                await client.hear("connected", 2)
                client.fleet.send(client.instruction("b"))
                await client.fleet.reply("b")
                async with first.before(client.fleet.port):
                    client.fleet.disconnect()
                    await client.hear("connected", 3)
                second_again = client.texts("connected")[2]
            assert f":{second.port} " in second_again, "what works is kept"
            found = [each async for each in examine(client.directory) if each.subject == "server"]
        assert [each.ok for each in found] == [False, True]
        shown = status_of(client.directory, now_s=0.0).server
        assert shown == f"localhost:{first.port}, localhost:{second.port}"
        await client.fleet.stop()
        return [f":{first.port} ", f":{second.port} "]

    ports = asyncio.run(scenario())
    assert ports[0] in client.texts("connected")[0] and ports[1] in client.texts("connected")[1]
    assert {reply.instruction_id for reply in client.fleet.replies} == {"a", "b"}
    assert len(client.texts("training")) == 2


def test_a_mistake_in_the_file(client: Client) -> None:
    """While client.toml is wrong, the agent stays with the addresses that it had."""

    async def scenario() -> None:
        async with client.connected():
            client.configure('[server]\naddresses = ["nonsense"]')
            client.fleet.disconnect()
            await client.hear("connected", 2)
            client.configure()

    asyncio.run(scenario())


def test_turns() -> None:
    """All addresses are tried before the pauses grow, and a change of the list is taken over."""
    routes = Routes()
    routes.update(["a:1", "b:1", "c:1"])
    tried = []
    for _ in range(4):
        tried.append(routes.present)
        routes.turn()
    assert tried == ["a:1", "b:1", "c:1", "a:1"]
    assert max(routes.delay_s(attempt) for attempt in (0, 1, 2)) <= RETRY_S_MIN / 3
    routes.update(["b:1", "d:1"])
    assert routes.present == "b:1"
    routes.update(["e:1"])
    assert routes.present == "e:1"


def give_up_ms(port: int) -> list[int]:
    """Return the TCP_USER_TIMEOUT of this process's connections to a port."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as copy:
            if copy.family != socket.AF_UNIX and copy.getpeername()[1] == port:
                found.append(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    return found


def test_an_idle_connection_is_not_silent(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without messages it carries pings, by default three times a minute, so that nobody cuts it; and
    TCP gives it up when nothing is acknowledged."""
    assert connection.KEEPALIVE_MS <= 20_000
    monkeypatch.setattr(connection, "KEEPALIVE_MS", 50)

    async def scenario() -> None:
        await client.fleet.start()
        client.enroll()
        box = Middlebox()
        async with box.before(client.fleet.port):
            lead(client, box.port)
            async with client.running():
                await client.hear("connected", 1)
                await box.passes(5)
                assert give_up_ms(box.port) == [connection.UNACKNOWLEDGED_MS_MAX]
        await client.fleet.stop()

    asyncio.run(scenario())
    assert len(client.fleet.hellos) == 1, "nor did the server end it for its pings"


@pytest.mark.parametrize("told", [True, False])
def test_cut_while_idle(client: Client, monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    """What the server sends after a cut, noticed or not, arrives over the next connection, once."""
    monkeypatch.setattr(connection, "KEEPALIVE_MS", 200)
    monkeypatch.setattr(connection, "PING_ANSWER_MS_MAX", 200)

    async def scenario() -> None:
        await client.fleet.start()
        client.enroll()
        box = Middlebox()
        async with box.before(client.fleet.port):
            lead(client, box.port)
            async with client.running():
                await client.hear("connected", 1)
                for number in range(2):
                    (box.cut if told else box.forget)()
                    client.fleet.send(client.instruction(f"{number}", values=10))
                    reply = await client.fleet.reply(f"{number}")
                    assert client.count_of(reply) == number + 1
                    assert len(client.fleet.hellos) >= number + 2
        await client.fleet.stop()

    asyncio.run(scenario())
    assert len(client.texts("training")) == 2


def test_a_proxy_that_cuts_idle_connections(client: Client) -> None:
    """It cuts after a second, and the agent's next ping would come after twenty: again and again the agent
    is back, and every instruction is executed once. `make idle` is the same with a minute, for ten."""

    async def scenario() -> None:
        await client.fleet.start()
        client.enroll()
        async with IdleProxy(client.fleet.port, idle_s=1.0) as proxy:
            lead(client, proxy.port)
            async with client.running(), asyncio.timeout(120):
                for number in range(4):
                    seen = proxy.cuts
                    while proxy.cuts == seen:
                        await asyncio.sleep(0.05)
                    client.fleet.send(client.instruction(f"{number}"))
                    reply = await client.fleet.reply(f"{number}")
                    assert client.count_of(reply) == number + 1
        await client.fleet.stop()

    asyncio.run(scenario())
    assert len(client.texts("training")) == 4
    assert len(client.fleet.hellos) >= 4
