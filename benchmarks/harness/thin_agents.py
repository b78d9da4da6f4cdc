"""Thousands of agents in one process: the protocol of an agent, without its disk, log and ledger.

`python thin_agents.py FOLDER COUNT FIRST` runs until its standard input ends. The agents were
enrolled by `enroll_many` before. Each has a certificate and a TLS connection of its own, says hello, answers
instructions at once and comes back after a loss, after the same pauses as an agent. So what is
measured of their server is what agents would cost it, while the machine carries many more of them: an agent on a
device of its own spends most of its time of a round on its own disk.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
from agents import AddsConstant

from meadow import __version__
from meadow.client.agent.connection import channel_options
from meadow.client.agent.uplink import retry_delay_s
from meadow.client.owner.identity_folder import ClientIdentity, IdentityFolder
from meadow.machine.process_limits import allow_many_files
from meadow.transport import fleet_pb2 as pb
from meadow.transport.blobs import blob_path, blobs_of
from meadow.transport.chunk_wire import unpack_chunk
from meadow.transport.protocol import PROTOCOL_VERSION

LOST = (grpc.aio.AioRpcError, asyncio.InvalidStateError)
"""What gRPC raises on a stream that has ended: when reading, and when writing."""


class ThinAgent:
    """One client: its trainer adds a number to the params that it is sent."""

    def __init__(self, identity: ClientIdentity, constant: float) -> None:
        self._identity = identity
        self._trainer = AddsConstant(constant, 0.0)

    async def run(self, folder: Path) -> None:
        """Stay connected, until cancelled."""
        attempt, credentials = 0, self._identity.credentials()
        while True:
            options = channel_options()
            with suppress(*LOST):
                async with grpc.aio.secure_channel(
                    self._identity.fleet_address, credentials, options
                ) as channel:
                    if await self._converse(channel, folder):
                        attempt = 0
            await asyncio.sleep(retry_delay_s(attempt))
            attempt += 1

    async def _converse(self, channel: grpc.aio.Channel, folder: Path) -> bool:
        """Answer what the server sends, until the stream ends; return whether it began."""
        call = channel.stream_stream(
            "/meadow.v1.Fleet/Connect",
            request_serializer=pb.AgentMessage.SerializeToString,
            response_deserializer=pb.ServerMessage.FromString,
        )()
        hello = pb.Hello(protocol=PROTOCOL_VERSION, client=self._identity.name, version=__version__)
        await call.write(pb.AgentMessage(hello=hello))
        began = False
        with suppress(*LOST):
            while (message := await call.read()) is not grpc.aio.EOF:
                began = True
                if message.WhichOneof("kind") == "instruction":
                    for blob in blobs_of(message.instruction.envelope):
                        await self._download(channel, blob, folder)
                    done = await self._trainer.execute(
                        message.instruction, folder, folder, folder, b"", lambda: None
                    )
                    reply = pb.Reply(instruction_id=done.instruction_id, envelope=done.envelope)
                    await call.write(pb.AgentMessage(reply=reply))
        return began

    async def _download(self, channel: grpc.aio.Channel, blob: pb.Blob, folder: Path) -> None:
        """Fetch a blob; the agents of a process share the file that the first one writes."""
        call = channel.unary_stream(
            "/meadow.v1.Fleet/Download",
            request_serializer=pb.DownloadRequest.SerializeToString,
            response_deserializer=unpack_chunk,
        )(pb.DownloadRequest(blob_id=blob.id))
        data = b"".join([bytes(piece.data) async for piece in call])
        path = blob_path(folder, blob.id)
        if not path.exists():
            path.write_bytes(data)


async def _run(agents: Path, count: int, first: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        tasks = [
            asyncio.create_task(
                ThinAgent(
                    IdentityFolder(agents / f"agent-{index:03d}").load(), 0.001 * (index + 1)
                ).run(Path(name))
            )
            for index in range(first, first + count)
        ]
        end = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        for done in (await asyncio.wait([end, *tasks], return_when="FIRST_COMPLETED"))[0]:
            done.result()  # an agent ends by a defect only
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    allow_many_files()
    asyncio.run(_run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
