"""The stream of small messages: gRPC's threads on one side, asyncio's tasks on the other."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import grpc
import pytest

from meadow.client.agent.stream import Stream
from meadow.client.agent.transfer import Bulk
from meadow.errors import IdentityError, UnreachableError
from meadow.transport.fleet_pb2 import AgentMessage, Blob, Progress, ReplyAck, ServerMessage

from ..conftest import Client

PATIENCE_S = 30.0


class RefusedError(grpc.RpcError):
    """How a call ends that the server refuses."""

    def code(self) -> grpc.StatusCode:
        """Return that this client was revoked."""
        return grpc.StatusCode.PERMISSION_DENIED

    def details(self) -> str:
        """Return what the server says."""
        return "this client was revoked"


class Call:
    """What gRPC gives for a call of streams: it takes as many messages as it is allowed."""

    def __init__(self, requests: Iterator[AgentMessage], may_take: int) -> None:
        self.taken: queue.SimpleQueue[AgentMessage] = queue.SimpleQueue()
        self.arriving: queue.SimpleQueue[ServerMessage | Exception | None] = queue.SimpleQueue()
        self.read = 0
        self._callbacks: list[Callable[[], None]] = []
        self.taking = threading.Thread(target=self._take, args=(requests, may_take))
        self.taking.start()

    def _take(self, requests: Iterator[AgentMessage], may_take: int) -> None:
        for message in requests:
            self.taken.put(message)
            may_take -= 1
            if not may_take:
                return

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Remember who wants to know the end."""
        self._callbacks.append(callback)
        return True

    def end(self, error: Exception | None) -> None:
        """End as the server says."""
        self.arriving.put(error)
        for callback in self._callbacks:
            callback()

    def cancel(self) -> bool:
        """End as we say."""
        self.arriving.put(None)
        return True

    def __next__(self) -> ServerMessage:
        message = self.arriving.get(timeout=PATIENCE_S)
        if isinstance(message, Exception):
            raise message
        if message is None:
            raise StopIteration
        self.read += 1
        return message


def opened(may_take: int = 1000) -> tuple[Stream, Call]:
    """Return a stream, and the call below it."""
    calls: list[Call] = []

    def connect(requests: Iterator[AgentMessage]) -> Call:
        calls.append(Call(requests, may_take))
        return calls[0]

    return Stream(connect, "somewhere:1"), calls[0]


def progress(number: int) -> AgentMessage:
    """Return a message that can be told from others."""
    return AgentMessage(progress=Progress(instruction_id=str(number)))


def test_messages_keep_their_order() -> None:
    """What many tasks send at once is sent once each; what arrives is read in order."""

    async def scenario() -> None:
        stream, call = opened()
        await asyncio.gather(*(stream.send(progress(number)) for number in range(50)))
        for number in range(5):
            call.arriving.put(ServerMessage(ack=ReplyAck(instruction_id=str(number))))
        for number in range(5):
            assert (await stream.receive()).ack.instruction_id == str(number)
        stream.close()
        call.taking.join(PATIENCE_S)
        sent = [call.taken.get_nowait().progress.instruction_id for _ in range(50)]
        assert sent == [str(number) for number in range(50)]
        assert call.taken.empty()

    asyncio.run(scenario())


def test_nothing_is_read_ahead() -> None:
    """A server that sends more than is asked for fills no memory of ours."""

    async def scenario() -> None:
        stream, call = opened()
        for number in range(100):
            call.arriving.put(ServerMessage(ack=ReplyAck(instruction_id=str(number))))
        await stream.receive()
        assert call.read == 1
        stream.close()

    asyncio.run(scenario())


def test_sending_waits_for_the_line() -> None:
    """A message that gRPC does not take holds the next one back; the end lets all of them go."""

    async def scenario() -> None:
        stream, call = opened(may_take=1)
        sending = [asyncio.create_task(stream.send(progress(number))) for number in range(3)]
        assert not (await asyncio.wait(sending, timeout=0.2))[0]
        call.end(None)
        results = await asyncio.gather(*sending, return_exceptions=True)
        assert all(isinstance(each, UnreachableError) for each in results)
        assert call.taken.qsize() == 1
        stream.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("end", "kind"), [(RefusedError(), IdentityError), (None, UnreachableError)]
)
def test_the_end_is_told(end: Exception | None, kind: type[Exception]) -> None:
    """Who receives learns why the stream ended; who sends, that it did."""

    async def scenario() -> None:
        stream, call = opened()
        call.end(end)
        with pytest.raises(kind):
            await stream.receive()
        async with asyncio.timeout(PATIENCE_S):
            await stream.lost
        with pytest.raises(UnreachableError, match="has ended"):
            await stream.send(progress(1))
        stream.close()

    asyncio.run(scenario())


def test_closing_wakes_who_waits() -> None:
    """A closed stream leaves nobody waiting, and no thread behind."""

    async def scenario() -> None:
        stream, call = opened()
        receiving = asyncio.create_task(stream.receive())
        await asyncio.sleep(0)
        stream.close()
        with pytest.raises(UnreachableError):
            await receiving
        assert stream.lost.done()
        call.taking.join(PATIENCE_S)
        assert not call.taking.is_alive()

    asyncio.run(scenario())


def test_a_client_is_one_connection(client: Client) -> None:
    """Tensors and messages share one connection of the server's."""

    async def scenario() -> int:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            await client.fleet.reply("a")
            assert client.fleet.downloads and client.fleet.uploads
            return established(client.fleet.port)

    assert asyncio.run(scenario()) == 1


@pytest.mark.parametrize("way", ["up", "down"])
def test_transfers_on_a_closed_connection(way: str, tmp_path: Path) -> None:
    """A transfer that begins when the connection has just been closed is tried again on the next."""
    blob = Blob(id="a", size_bytes=3, crc32=crc32(b"abc"))
    (tmp_path / "file").write_bytes(b"abc")

    async def scenario() -> None:
        channel = grpc.insecure_channel("127.0.0.1:1")
        bulk = Bulk(channel, "somewhere:1", blob_bytes_max=1 << 20)
        channel.close()
        if way == "up":
            await bulk.upload("1", blob, tmp_path / "file")
        else:
            await bulk.download(blob, tmp_path)

    with pytest.raises(UnreachableError, match="hung up"):
        asyncio.run(scenario())


def established(port: int) -> int:
    """Return how many TCP connections a port of this machine has, seen from its side."""
    table = "".join(Path("/proc/net", name).read_text() for name in ("tcp", "tcp6"))
    rows, local = [line.split() for line in table.splitlines()], f":{port:04X}"
    return sum(row[1].endswith(local) and row[3] == "01" for row in rows)
