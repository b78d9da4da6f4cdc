"""A daemon in this process, and whoever calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor

from meadow.config.server_config import server_config_to_toml
from meadow.server.daemon.daemon import Daemon
from meadow.server.daemon.server_dir import ServerFolder
from meadow.transport import fleet_pb2 as pb
from meadow.transport.keys import KeyPair
from meadow.transport.tls import channel_credentials

SERVICES = pb.DESCRIPTOR.services_by_name
Code = grpc.StatusCode
Scenario = Callable[["House"], Awaitable[None]]


class House:
    """A daemon in this process, with one run in its journal, and who calls it."""

    def __init__(self, folder: Path, status: str) -> None:
        home = ServerFolder.create(folder, host="localhost", now=datetime.now(UTC))
        config = replace(home.config, fleet_port=0, enroll_port=0)
        (folder / "server.toml").write_text(server_config_to_toml(config))
        self.home, self.daemon = home, Daemon(ServerFolder(folder))
        self.run_id = self.daemon._journal.runs.submit("app", "sha", "[]", now_s=0.0)
        self.daemon._journal.runs.status(self.run_id, status, now_s=0.0)
        self.addresses: dict[str, str] = {}

    def pair(self) -> KeyPair:
        """Return the administrator's key and certificate."""
        identity = self.home.admin()
        return KeyPair(key_pem=identity.key_pem, certificate_pem=identity.certificate_pem)

    async def call(self, method: MethodDescriptor, *requests: Any) -> tuple[Code, str]:
        """Make a call, whatever is asked, and return how it ended."""
        enrolls = method.containing_service.name == "Enrollment"
        address = self.addresses["enroll" if enrolls else "fleet"]
        pair = None if enrolls else self.pair()
        credentials = channel_credentials(self.home.authority.certificate_pem, pair)
        async with grpc.aio.secure_channel(address, credentials) as channel:
            call = channel.stream_stream(f"/{method.containing_service.full_name}/{method.name}")(
                iter([request.SerializeToString() for request in requests])
            )
            with pytest.raises(grpc.aio.AioRpcError) as found:
                async for _ in call:
                    pass
        return found.value.code(), found.value.details() or ""


def in_a_house(folder: Path, scenario: Scenario, *, status: str = "failed") -> None:
    """Run a scenario beside a daemon."""

    async def main() -> None:
        house, up = House(folder, status), asyncio.Event()

        def ready(addresses: dict[str, str]) -> None:
            house.addresses = addresses
            up.set()

        running = asyncio.create_task(house.daemon.run(ready=ready))
        await asyncio.wait([running, asyncio.create_task(up.wait())], return_when="FIRST_COMPLETED")
        try:
            await scenario(house)
        finally:
            house.daemon.stop()
            await running

    asyncio.run(main())
