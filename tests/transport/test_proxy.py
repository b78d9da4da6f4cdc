"""The way through a proxy: the same for gRPC's calls and for the first look at a server."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime

import grpc
import pytest
from strange_listeners import ConnectProxy, listener, web_server

from meadow.errors import ConfigError, UnreachableError
from meadow.transport.address import Address
from meadow.transport.authority import Authority
from meadow.transport.proxy import (
    DIRECT_VARIABLES,
    PROXY_VARIABLES,
    Proxy,
    _ask_proxy,
    bypass_for_this_machine,
    proxy_for,
    proxy_options,
)
from meadow.transport.reach import why_not_reached
from meadow.transport.tls import channel_credentials, fetch_ca

from .test_tls import listening

NAME = "fl.example.test"
"""No DNS knows it: only the proxy does."""
NOW = datetime.now(UTC)
AUTHORITY = Authority.create(now=NOW)
SERVER = AUTHORITY.issue_server([NAME, "2001:db8::7"], now=NOW, days=1)
LOGIN = "Basic dXNlcjpwOndvcmQ="  # user:p:word


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXY_VARIABLES, *DIRECT_VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable", PROXY_VARIABLES)
def test_both_ways_go_through_it(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The authority is fetched, and a call made, by a name that only the proxy knows."""

    async def scenario() -> list[tuple[str, str | None]]:
        async with listening(lambda: SERVER, ca_pem=None) as port:
            proxy = ConnectProxy({f"{NAME}:{port}": ("127.0.0.1", port)}, LOGIN)
            with listener(proxy) as at:
                monkeypatch.setenv(variable, f"http://user:p%3Aword@127.0.0.1:{at}")
                pem = await asyncio.to_thread(fetch_ca, NAME, port, AUTHORITY.fingerprint)
                await asyncio.to_thread(call, f"{NAME}:{port}", pem)
            return [(target.partition(":")[0], login) for target, login in proxy.asked]

    assert asyncio.run(scenario()) == [(NAME, LOGIN)] * 2


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_ipv6_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy's address and the server's stand in brackets, for gRPC as for the first look."""

    async def scenario() -> set[str]:
        async with listening(lambda: SERVER, ca_pem=None) as port:
            proxy = ConnectProxy({f"[2001:db8::7]:{port}": ("127.0.0.1", port)})
            with listener(proxy, "::1") as at:
                monkeypatch.setenv("https_proxy", f"http://[::1]:{at}")
                address = Address.parse(f"[2001:db8::7]:{port}")
                where = (address.host, address.port, AUTHORITY.fingerprint)
                pem = await asyncio.to_thread(fetch_ca, *where)
                await asyncio.to_thread(call, str(address), pem)
            return {target.rpartition(":")[0] for target, _ in proxy.asked}

    assert asyncio.run(scenario()) == {"[2001:db8::7]"}


def call(address: str, ca_pem: bytes) -> bytes:
    """Make a call over a channel as ours are opened."""
    credentials, options = channel_credentials(ca_pem), proxy_options(address)
    with grpc.secure_channel(address, credentials, options) as channel:
        return bytes(channel.unary_unary("/test/whoami")(b"", timeout=20))


def test_a_proxy_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words are told, with what to do; a password never is."""
    with listener(ConnectProxy({}, None)) as at:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@127.0.0.1:{at}")
        with pytest.raises(UnreachableError) as caught:
            fetch_ca(NAME, 9444, AUTHORITY.fingerprint)
    assert "refuses to connect to fl.example.test:9444: 403 Forbidden" in str(caught.value)
    assert "no_proxy" in str(caught.value) and "secret" not in str(caught.value)
    with listener(ConnectProxy({}, LOGIN)) as at:
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{at}")
        found = why_not_reached(f"{NAME}:1", AUTHORITY.certificate_pem, now=NOW) or ""
    assert "407" in found and "http://USER:PASSWORD@HOST:PORT" in found


def test_a_proxy_that_does_not_stop_talking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head without an end is read up to a bound."""
    monkeypatch.setattr("meadow.transport.proxy.ANSWER_BYTES_MAX", 100)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100)
        asked = Proxy(Address("localhost", 1), "HTTPS_PROXY")
        with pytest.raises(UnreachableError, match="does not speak HTTP"):
            _ask_proxy(ours, asked, Address("localhost", 2))
        assert theirs.recv(1)


def test_no_proxy_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that is away, or none, is named as such."""
    with listener(web_server) as at:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{at}")
        with pytest.raises(UnreachableError, match=r"the proxy 127\.0\.0\.1:.*400 Bad Request"):
            fetch_ca(NAME, 9444, AUTHORITY.fingerprint)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{at}")
    with pytest.raises(UnreachableError, match=r"\(https_proxy\) did not answer: nothing listens"):
        fetch_ca(NAME, 9444, AUTHORITY.fingerprint)


@pytest.mark.parametrize(
    ("exceptions", "host", "direct"),
    [
        ("*", "a.org", True),
        ("example.org", "fl.example.org", True),
        (" x , .example.org", "fl.EXAMPLE.org", True),
        ("example.org", "example.com", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("::1", "::1", True),
        ("[::1]", "::1", True),
        ("fd00::/8", "fd12::3", True),
        ("", "a.org", False),
        (",", "a.org", False),
    ],
)
def test_exceptions(exceptions: str, host: str, direct: bool) -> None:
    """no_proxy names domains, addresses and networks."""
    environ = {"https_proxy": "http://proxy:3128", "no_proxy": exceptions}
    assert (proxy_for(Address(host, 9443), environ) is None) == direct


def test_what_runs_on_this_machine_alone() -> None:
    """A demo needs no proxy, whatever else goes through one."""
    environ = {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".intern"}
    bypass_for_this_machine(environ)
    for host in ("localhost", "127.0.0.1", "::1", "a.intern"):
        assert proxy_for(Address(host, 1), environ) is None
    assert proxy_for(Address("a.org", 1), environ) is not None


@pytest.mark.parametrize(
    "said", ["https://p:1", "socks5://p:1", "http://", "http://p:x", "http://[:1"]
)
def test_other_kinds(said: str) -> None:
    """A proxy of another kind is an error of the configuration, which does not repeat its text."""
    with pytest.raises(ConfigError, match=r"^https_proxy must be http://HOST:PORT"):
        proxy_for(Address("a.org", 1), {"https_proxy": said})
