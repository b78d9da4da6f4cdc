"""Each way in which a server is not reached has its own sentence, with the remedy."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from strange_listeners import ConnectProxy, closes, listener, mail_server, web_server

from meadow.errors import IdentityError, UnreachableError
from meadow.transport.authority import Authority
from meadow.transport.keys import KeyPair
from meadow.transport.reach import why_not_reached
from meadow.transport.tls import fetch_ca

from .test_tls import listening

NOW = datetime.now(UTC)
AUTHORITY = Authority.create(now=NOW - timedelta(days=100))
OTHERS = Authority.create(now=NOW, name="Corporate proxy")


def why(port: int, *, host: str = "127.0.0.1", patience_s: float = 5.0) -> str | None:
    """Return what is said of a server of our authority there."""
    found = why_not_reached(
        f"{host}:{port}", AUTHORITY.certificate_pem, now=datetime.now(UTC), timeout_s=patience_s
    )
    assert found is None or "\n" not in found
    return found


def seen(pair: KeyPair, host: str = "127.0.0.1") -> str | None:
    """Return what is said of a server that shows this certificate."""

    async def scenario() -> str | None:
        async with listening(lambda: pair, ca_pem=None) as port:
            return await asyncio.to_thread(why, port, host=host)

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (web_server, "speaks HTTP/1 without TLS: it is a web server or a proxy"),
        (mail_server, "speaks no TLS, but b'220 mail.example.org"),
        (closes, "closes the connection at once: a firewall or a proxy in between"),
    ],
)
def test_no_meadow_server(answer: Callable[[socket.socket], None], says: str) -> None:
    """What else listens there is named as far as it can be seen."""
    with listener(answer) as port:
        assert says in (why(port) or "")
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1"):
            fetch_ca("127.0.0.1", port, AUTHORITY.fingerprint)


def test_nobody_listens_or_answers() -> None:
    """A closed port, one that keeps silent, and a name that nobody knows."""
    with socket.socket() as plain:
        plain.bind(("127.0.0.1", 0))
        port = plain.getsockname()[1]
        assert "nothing listens there" in (why(port) or "")
        plain.listen()
        assert "says nothing" in (why(port, patience_s=0.05) or "")
    assert "does not know the name 'no-such-host.invalid'" in (
        why(1, host="no-such-host.invalid") or ""
    )


def test_all_is_well() -> None:
    """Of a server of our authority, valid now and for this name, there is nothing to say."""
    assert seen(AUTHORITY.issue_server([], now=NOW, days=1)) is None
    assert seen(AUTHORITY.issue_server([], now=NOW, days=1), host="localhost") is None


def test_the_server_is_ahead() -> None:
    """A certificate of tomorrow: one of the two clocks is wrong, and by how much."""
    found = seen(AUTHORITY.issue_server([], now=NOW + timedelta(days=3), days=1)) or ""
    assert "this clock is behind, or the server's ahead, by 3 days or more" in found
    assert "set the wrong one (NTP)" in found


def test_the_server_is_behind() -> None:
    """A certificate of last week."""
    found = seen(AUTHORITY.issue_server([], now=NOW - timedelta(days=8), days=1)) or ""
    assert "this clock is ahead, or the server's behind, by 7 days or more" in found


def test_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its names are shown, and what its operator has to add."""
    pair = AUTHORITY.issue_server(["fl.example.org"], now=NOW, days=1)

    async def scenario() -> str | None:
        async with listening(lambda: pair, ca_pem=None) as port:
            with listener(ConnectProxy({f"other.test:{port}": ("127.0.0.1", port)})) as proxy:
                monkeypatch.setenv("grpc_proxy", f"http://127.0.0.1:{proxy}")
                return await asyncio.to_thread(why, port, host="other.test")

    found = asyncio.run(scenario()) or ""
    names = "fl.example.org, localhost, 127.0.0.1, ::1"
    assert f"certificate is for {names}, not for 'other.test'" in found
    assert "hosts in server.toml" in found


def test_another_authority() -> None:
    """Whose certificate it is, is said: of a proxy that reads along, its own."""
    found = seen(OTHERS.issue_server([], now=NOW, days=1)) or ""
    assert "CN=Corporate proxy" in found and "enrol again" in found


def test_enrolment_says_the_same() -> None:
    """Who enrols hears of the clock and of the name before a token is shown."""
    late = AUTHORITY.issue_server([], now=datetime.now(UTC) + timedelta(hours=5), days=1)

    async def scenario() -> None:
        async with listening(lambda: late, ca_pem=None) as port:
            await asyncio.to_thread(fetch_ca, "127.0.0.1", port, AUTHORITY.fingerprint)

    with pytest.raises(IdentityError, match=r"clock is behind, or the server's ahead, by 5 hours"):
        asyncio.run(scenario())
