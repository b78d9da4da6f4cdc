"""The two listeners let in whom they should, on real connections; nobody else."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from meadow.errors import IdentityError, UnreachableError
from meadow.transport.authority import Authority
from meadow.transport.identity import fingerprint_of, peer_identity
from meadow.transport.keys import KeyPair, create_request
from meadow.transport.tls import channel_credentials, fetch_ca, server_credentials

# The TLS library looks at the real clock, and at nothing that could be handed in.
NOW = datetime.now(UTC)
AUTHORITY = Authority.create(now=NOW)
IMPOSTOR = Authority.create(now=NOW)
SERVER = AUTHORITY.issue_server([], now=NOW, days=1)


@asynccontextmanager
async def listening(
    current: Callable[[], KeyPair] = lambda: SERVER,
    *,
    ca_pem: bytes | None = AUTHORITY.certificate_pem,
) -> AsyncIterator[int]:
    """Serve one method, which tells the peer's name, and yield the port."""

    async def whoami(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            return peer_identity(context.auth_context()).name.encode()
        except IdentityError:
            return b"nobody"

    handler = grpc.unary_unary_rpc_method_handler(whoami)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test", {"whoami": handler}),)
    )
    port = server.add_secure_port("127.0.0.1:0", server_credentials(current, ca_pem=ca_pem))
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def ask(port: int, credentials: grpc.ChannelCredentials, host: str = "127.0.0.1") -> str:
    """Ask a server who we are."""
    async with grpc.aio.secure_channel(f"{host}:{port}", credentials) as channel:
        answer = await channel.unary_unary("/test/whoami")(b"", timeout=20)
    return bytes(answer).decode()


def client(
    folder: Path, authority: Authority = AUTHORITY, *, issued: datetime = NOW, days: float = 1
) -> KeyPair:
    """Enrol a client called clinic-a."""
    request = create_request("clinic-a", folder / "key.pem")
    pem = authority.issue_client(request, name="clinic-a", now=issued, days=days)
    return KeyPair(key_pem=(folder / "key.pem").read_bytes(), certificate_pem=pem)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_client_is_recognised(tmp_path: Path, host: str) -> None:
    """Over mutual TLS the server knows the client's name."""

    async def scenario() -> str:
        async with listening() as port:
            pair = client(tmp_path)
            return await ask(port, channel_credentials(AUTHORITY.certificate_pem, pair), host)

    assert asyncio.run(scenario()) == "clinic-a"


def test_enrolment_needs_no_certificate() -> None:
    """Where clients enrol, the server shows itself and asks for nothing."""

    async def scenario() -> str:
        async with listening(ca_pem=None) as port:
            return await ask(port, channel_credentials(AUTHORITY.certificate_pem))

    assert asyncio.run(scenario()) == "nobody"


@pytest.mark.parametrize("who", ["nobody", "a stranger", "expired", "from tomorrow", "self-made"])
def test_others_are_refused(tmp_path: Path, who: str) -> None:
    """Without a certificate that the authority issued and that is valid now, nobody gets in."""
    pair = {
        "nobody": lambda: None,
        "a stranger": lambda: client(tmp_path, IMPOSTOR),
        "expired": lambda: client(tmp_path, issued=NOW - timedelta(days=3)),
        "from tomorrow": lambda: client(tmp_path, issued=NOW + timedelta(days=1)),
        "self-made": lambda: KeyPair(
            key_pem=IMPOSTOR.key_pem, certificate_pem=IMPOSTOR.certificate_pem
        ),
    }[who]()

    async def scenario() -> str:
        async with listening() as port:
            return await ask(port, channel_credentials(AUTHORITY.certificate_pem, pair))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        asyncio.run(scenario())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("who", ["a stranger", "expired", "another host", "a client"])
def test_clients_refuse_other_servers(tmp_path: Path, who: str) -> None:
    """A client talks to no server but the one whose authority and address it knows."""
    shown = {
        "a stranger": lambda: IMPOSTOR.issue_server([], now=NOW, days=1),
        "expired": lambda: AUTHORITY.issue_server([], now=NOW - timedelta(days=3), days=1),
        "another host": lambda: SERVER,
        "a client": lambda: client(tmp_path),
    }[who]()

    async def scenario() -> str:
        async with listening(lambda: shown, ca_pem=None) as port:
            host = "127.0.0.2" if who == "another host" else "127.0.0.1"
            return await ask(port, channel_credentials(AUTHORITY.certificate_pem), host)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        asyncio.run(scenario())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def shown_by(port: int) -> str:
    """Return the fingerprint of the certificate that a server shows."""
    return fingerprint_of(ssl.get_server_certificate(("127.0.0.1", port)).encode())


def test_a_server_renews_while_it_runs() -> None:
    """New connections see the new certificate, and the authority stays the same."""
    newest = [SERVER]

    async def scenario() -> tuple[str, str, str]:
        async with listening(lambda: newest[0]) as port:
            before = await asyncio.to_thread(shown_by, port)
            newest[0] = AUTHORITY.issue_server([], now=NOW, days=2)
            after = await asyncio.to_thread(shown_by, port)
            again = await asyncio.to_thread(shown_by, port)
            return before, after, again

    before, after, again = asyncio.run(scenario())
    assert before == fingerprint_of(SERVER.certificate_pem)
    assert after == again == fingerprint_of(newest[0].certificate_pem)


@pytest.mark.parametrize("ca_pem", [None, AUTHORITY.certificate_pem])
def test_the_authority_is_fetched_by_its_fingerprint(ca_pem: bytes | None) -> None:
    """From either listener the authority's certificate comes, if it is the expected one."""

    async def scenario() -> bytes:
        async with listening(ca_pem=ca_pem) as port:
            return await asyncio.to_thread(fetch_ca, "127.0.0.1", port, AUTHORITY.fingerprint)

    assert asyncio.run(scenario()) == AUTHORITY.certificate_pem


def chained(leaf: KeyPair, authority: Authority) -> KeyPair:
    """Show a certificate together with an authority that may not be its own."""
    own = leaf.certificate_pem.split(b"-----END CERTIFICATE-----\n")[0]
    pem = own + b"-----END CERTIFICATE-----\n" + authority.certificate_pem
    return KeyPair(key_pem=leaf.key_pem, certificate_pem=pem)


@pytest.mark.parametrize("who", ["another authority", "a borrowed authority", "a leaf alone"])
def test_impostors_are_not_believed(who: str) -> None:
    """Another authority, a borrowed one, or a fingerprint of something else is refused."""
    leaf = IMPOSTOR.issue_server([], now=NOW, days=1)
    first = leaf.certificate_pem.split(b"-----END CERTIFICATE-----\n")[0]
    alone = KeyPair(key_pem=leaf.key_pem, certificate_pem=first + b"-----END CERTIFICATE-----\n")
    shown, fingerprint, text = {
        "another authority": (leaf, AUTHORITY.fingerprint, "expected"),
        "a borrowed authority": (chained(leaf, AUTHORITY), AUTHORITY.fingerprint, "not from"),
        "a leaf alone": (alone, fingerprint_of(alone.certificate_pem), "no authority"),
    }[who]

    async def scenario() -> bytes:
        async with listening(lambda: shown, ca_pem=None) as port:
            return await asyncio.to_thread(fetch_ca, "127.0.0.1", port, fingerprint)

    with pytest.raises(IdentityError, match=text):
        asyncio.run(scenario())


def test_silence_is_no_server() -> None:
    """A closed port, and one that never answers, are unreachable, within the time allowed."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(UnreachableError, match=f"127.0.0.1:{port} did not answer"):
            fetch_ca("127.0.0.1", port, AUTHORITY.fingerprint)
        closed.listen()
        with pytest.raises(UnreachableError, match="did not answer"):
            fetch_ca("127.0.0.1", port, AUTHORITY.fingerprint, timeout_s=0.05)
