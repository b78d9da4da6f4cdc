"""Who is not invited: refused, written down, and no hindrance to those who are."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from meadow.client.hosts import leader as leading
from meadow.client.hosts import wire as wires
from meadow.client.hosts.leader import Leader
from meadow.client.hosts.member import serve_ranks
from meadow.client.hosts.membership import Membership, Pass
from meadow.client.hosts.wire import Wire, accepted, dialled, member_tls
from meadow.config.sections.device import DeviceConfig
from meadow.errors import ConfigError, MeadowError
from meadow.transport.address import Address
from meadow.transport.authority import Authority
from meadow.transport.identity import verify_issued

NOW = datetime.now(UTC)
BOUND_S = 60.0


class Site:
    """A leader on this machine, what it has logged, and passes of its own."""

    def __init__(self, folder: Path) -> None:
        self.membership = Membership(folder)
        self.member = self.membership.invite("host-b", now=NOW)
        self.log: list[str] = []

    @asynccontextmanager
    async def leads(self, **config: Any) -> AsyncIterator[Leader]:
        """Lead on a free port."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        told = {"hosts": 2, "hosts_listen": f"127.0.0.1:{port}", "hosts_wait_s": BOUND_S, **config}
        leader = Leader(
            self.membership, DeviceConfig(parallel="ddp", **told), report=self.log.append
        )
        try:
            yield leader
        finally:
            await leader.close()

    async def logged(self, text: str) -> None:
        """Wait until something is in the log."""
        async with asyncio.timeout(BOUND_S):
            while not any(text in line for line in self.log):
                await asyncio.sleep(0.01)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a site."""
    return Site(tmp_path / "site")


async def joins(leader: Leader, context: ssl.SSLContext) -> dict[str, Any]:
    """Dial and ask to join; returns the answer."""
    line = await dialled(Address("127.0.0.1", leader.port), context)
    try:
        await line.send({"kind": "join", "devices": ["cpu"]})
        return await line.receive(within_s=BOUND_S)
    finally:
        line.abort()


@asynccontextmanager
async def a_member(leader: Leader, shown: Pass) -> AsyncIterator[None]:
    """Join as a machine does, until the end of the block."""
    serving = asyncio.create_task(
        serve_ranks(
            shown,
            Address("127.0.0.1", leader.port),
            apps=[],
            devices=["cpu", "cpu"],
            environment={},
            report=lambda text: None,
        )
    )
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def test_a_member_joins(site: Site) -> None:
    """Who was invited is there, with its devices; the status says so, and when it has gone."""

    async def check() -> None:
        async with site.leads() as leader:
            async with a_member(leader, site.member):
                hosts = await leader.gather()
                assert [(host.name, host.devices) for host in hosts] == [("host-b", ("cpu", "cpu"))]
                (there,) = site.membership.status()["hosts"]
                assert there["name"] == "host-b" and there["ranks"] == 2 and there["trains"]
            await site.logged("host-b is lost")
            assert leader.changed() and site.membership.status()["missing"] == 1

    asyncio.run(check())


@pytest.mark.parametrize("who", ["nobody", "self-made", "another site", "invited again", "removed"])
def test_a_stranger_is_refused(site: Site, tmp_path: Path, who: str) -> None:
    """Without a certificate, with one of its own making, with another site's, or with one that is void:
    nobody joins, and it is written down."""
    other = Membership(tmp_path / "other").invite("host-b", now=NOW)
    shown = other if who in ("another site", "self-made") else site.member
    if who == "invited again":
        site.membership.invite("host-b", now=NOW)
    if who == "removed":
        (site.membership.folder / "members" / "host-b.pem").unlink()
    if who == "self-made":
        own = Authority.create(now=NOW, name="host-b")
        shown = replace(other, certificate_pem=own.certificate_pem, key_pem=own.key_pem)
    context = member_tls(shown)
    if who == "nobody":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if who in ("nobody", "self-made", "another site"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the stranger does not mind who leads

    async def check() -> None:
        async with site.leads() as leader:
            with pytest.raises((OSError, MeadowError)):
                await joins(leader, context)
            await site.logged("refused a connection from 127.0.0.1")
            assert not site.membership.status()["hosts"]
            assert site.membership.status()["refusals"] >= 1

    asyncio.run(check())


def test_an_old_pass(site: Site) -> None:
    """A certificate that has run out is refused."""
    old = site.membership.invite("host-c", now=NOW - timedelta(days=900))

    async def check() -> None:
        async with site.leads() as leader:
            with pytest.raises((OSError, MeadowError)):
                await joins(leader, member_tls(old))
            await site.logged("refused a connection")

    asyncio.run(check())


def test_a_pass_is_for_one_machine(site: Site) -> None:
    """A second machine with the pass of one that is there is refused, and the first stays."""

    async def check() -> None:
        async with site.leads() as leader, a_member(leader, site.member):
            await leader.gather()
            answer = await joins(leader, member_tls(site.member))
            assert answer["kind"] == "refused" and "joined already" in answer["why"]
            assert not leader.changed()
            assert any("joined already" in line for line in site.log)

    asyncio.run(check())


def test_a_member_does_not_lead(site: Site) -> None:
    """A machine's own certificate does not pass for the leader's, nor does another site's."""

    async def check(file: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            loop = asyncio.get_running_loop()

            async def poses() -> None:
                connected, _ = await loop.sock_accept(listener)
                connected.setblocking(False)
                await accepted(connected, context)

            posing = asyncio.create_task(poses())
            with pytest.raises(ssl.SSLError):
                port = listener.getsockname()[1]
                await dialled(Address("127.0.0.1", port), member_tls(site.member))
            await asyncio.gather(posing, return_exceptions=True)

    file = site.membership.folder / "posing.pem"
    other = site.membership.invite("host-c", now=NOW)
    file.write_bytes(other.certificate_pem + other.key_pem)
    asyncio.run(check(file))


def test_garbage_and_silence(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers who send garbage, or keep more connections open than may wait, are dropped, oldest
    first; a member joins and stays among them."""
    monkeypatch.setattr(leading, "PENDING_MAX", 8)

    async def check() -> None:
        async with site.leads() as leader, a_member(leader, site.member):
            await leader.gather()
            silent = [await asyncio.open_connection("127.0.0.1", leader.port) for _ in range(3 * 8)]
            for _, writer in silent[::2]:
                writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(10_000))
            await site.logged("others came after it")
            assert len(leader._pending) <= 8
            async with asyncio.timeout(BOUND_S):
                assert await joins(leader, member_tls(site.member))
            assert not leader.changed()
            for _, writer in silent:
                writer.close()

    asyncio.run(check())


def test_the_silent_are_hung_up_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that says nothing, before or after its certificate, ends; so does a member that is
    silent."""
    monkeypatch.setattr(leading, "HANDSHAKE_S_MAX", 0.5)
    monkeypatch.setattr(leading, "SILENT_S_MAX", 0.5)

    async def check() -> None:
        async with site.leads() as leader:
            reader, writer = await asyncio.open_connection("127.0.0.1", leader.port)
            async with asyncio.timeout(BOUND_S):
                assert await reader.read(1) == b""
            writer.close()
            line = await dialled(Address("127.0.0.1", leader.port), member_tls(site.member))
            await site.logged("nothing came in time")
            line.abort()
            line = await dialled(Address("127.0.0.1", leader.port), member_tls(site.member))
            await line.send({"kind": "join", "devices": ["cpu"]})
            await site.logged("host-b is lost: nothing came in time")
            line.abort()

    asyncio.run(check())


@pytest.mark.parametrize(
    "sent",
    [
        b"not json\n",
        b"[1]\n",
        b'{"kind": 7}\n',
        b"[" * 60_000 + b"\n",
        b"x" * (wires.LINE_BYTES_MAX + 1) + b"\n",
        b"x" * (2 * wires.COPY_BYTES_MAX),
        b'{"kind": "join"}\n',
        b'{"kind": "join", "devices": []}\n',
        b'{"kind": "join", "devices": ["cpu; rm"]}\n',
        json.dumps({"kind": "join", "devices": ["cpu"] * (wires.RANKS_MAX + 1)}).encode() + b"\n",
        b'{"kind": "dial", "attempt": 0, "host": 0, "port": 22}\n',
        b'{"kind": "stream", "id": "0"}\n',
    ],
)
def test_what_a_member_may_not_say(site: Site, sent: bytes) -> None:
    """Messages that are none, too long, or ask for what is not of an attempt, end the connection."""

    async def check() -> None:
        async with site.leads() as leader:
            line = await dialled(Address("127.0.0.1", leader.port), member_tls(site.member))
            line.writer.write(sent)
            async with asyncio.timeout(BOUND_S):
                with pytest.raises((OSError, MeadowError)):
                    await line.receive(within_s=BOUND_S)
            assert not site.membership.status()["hosts"]
            line.abort()

    asyncio.run(check())


def test_a_member_reaches_ranks_alone(site: Site) -> None:
    """Who has joined cannot have the leader dial another port of its machine."""

    async def check() -> None:
        with socket.create_server(("127.0.0.1", 0)) as private:
            async with site.leads() as leader, a_member(leader, site.member):
                await leader.gather()
                await leader.connect([[1], [2]])
                port = private.getsockname()[1]
                line = await dialled(Address("127.0.0.1", leader.port), member_tls(site.member))
                await line.send({"kind": "dial", "attempt": 1, "host": 0, "port": port})
                await site.logged("a port that is no rank's")
                with pytest.raises((OSError, MeadowError)):
                    await line.receive(within_s=BOUND_S)

    asyncio.run(check())


def test_passes_are_secret_files(site: Site, tmp_path: Path) -> None:
    """Only the owner may read one; the leader keeps no copy of its key; a file that is none is
    refused with the remedy."""
    file = tmp_path / "b.pass"
    site.member.write(file)
    assert file.stat().st_mode & 0o077 == 0
    assert Pass.read(file) == site.member
    kept = b"".join(each.read_bytes() for each in site.membership.folder.rglob("*.*"))
    assert site.member.key_pem not in kept
    assert verify_issued(site.member.certificate_pem, site.member.ca_pem).name == "host-b"
    for text in ("", "{}", "[]", file.read_text()[:-200], file.read_text().replace("b", "c", 30)):
        file.write_text(text)
        with pytest.raises(ConfigError, match="--invite"):
            Pass.read(file)


def test_nobody_was_invited(tmp_path: Path) -> None:
    """Leading without a certificate is refused with the command that makes one."""
    with pytest.raises(ConfigError, match="--invite"):
        Membership(tmp_path).tls()


def test_a_wire_of_this_machine() -> None:
    """A connection of this machine carries messages both ways."""

    async def check() -> None:
        one, other = socket.socketpair()
        here, there = await Wire.local(one), await Wire.local(other)
        await here.send({"kind": "ping"})
        assert await there.receive(within_s=BOUND_S) == {"kind": "ping"}
        here.close()
        with pytest.raises(ConnectionError):
            await there.receive(within_s=BOUND_S)
        there.close()

    asyncio.run(check())


def test_a_member_that_does_not_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for so long, and then the attempt has failed as if it was lost."""
    monkeypatch.setattr(leading, "STREAM_S_MAX", 0.2)

    async def check() -> None:
        async with site.leads() as leader:
            wire = await dialled(Address("127.0.0.1", leader.port), member_tls(site.member))
            await wire.send({"kind": "join", "devices": ["cpu"]})
            await site.logged("has joined")
            with pytest.raises(TimeoutError, match="host-b did not answer"):
                await leader.gather()
            wire.abort()

    asyncio.run(check())


def test_connections_of_a_member(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a member may have are refused."""
    monkeypatch.setattr(leading, "STREAMS_MAX", 0)

    async def check() -> None:
        async with site.leads() as leader, a_member(leader, site.member):
            await leader.gather()
            await leader.connect([[1], [2]])
            wire = await dialled(Address("127.0.0.1", leader.port), member_tls(site.member))
            await wire.send({"kind": "dial", "attempt": 1, "host": 0, "port": 1})
            await site.logged("has 0 connections")
            wire.abort()

    asyncio.run(check())
