"""What an owner reads while there is no connection: each cause once, with its remedy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta

import grpc
import pytest
from strange_listeners import closes, listener, web_server

from meadow.client.agent import reconnecting
from meadow.client.agent.clock import Clock, clock_fault
from meadow.client.agent.events import Event
from meadow.client.agent.reconnecting import Outage
from meadow.client.agent.rpc_errors import rpc_errors
from meadow.client.tools.doctor import examine
from meadow.errors import ProtocolError, UnreachableError
from meadow.transport.protocol import PROTOCOL_VERSION

from ..conftest import Client


def test_each_cause_is_one_line(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    """A server that is away, a web server in its place, and the server again: three lines, and none of
    gRPC's."""

    async def scenario() -> None:
        await client.fleet.start()
        client.enroll()
        await client.fleet.stop()
        async with client.running():
            await client.hear("disconnected", 1)
            await asyncio.sleep(1.5)  # more attempts, which find the same
            await client.fleet.start()
            await client.hear("connected", 1)
        await client.fleet.stop()

    asyncio.run(scenario())
    said = [event.text for event in client.events]
    assert len(said) == 2, said
    assert re.fullmatch(
        r"localhost:\d+ did not answer: nothing listens there; .*; trying again", said[0]
    )
    assert client.events[0].level == "WARNING"


@pytest.mark.parametrize("other", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
def test_a_server_of_another_version(client: Client, other: int) -> None:
    """The agent says so once, and is there when the server is upgraded."""

    async def scenario() -> None:
        client.fleet.speaks = other
        await client.fleet.start()
        client.enroll()
        async with client.running():
            await client.hear("disconnected", 1)
            client.fleet.speaks = PROTOCOL_VERSION
            await client.hear("connected", 1)
        await client.fleet.stop()

    asyncio.run(scenario())
    assert client.texts("disconnected") == ["another protocol; trying again"]


@pytest.mark.parametrize(
    ("answer", "says"), [(web_server, "speaks HTTP/1"), (closes, "closes the connection at once")]
)
def test_what_is_in_between(client: Client, answer: Callable[..., None], says: str) -> None:
    """Where a proxy answers in the server's place, that is the line."""

    async def scenario() -> None:
        await client.fleet.start()
        client.enroll()
        await client.fleet.stop()
        with listener(answer) as port:
            file = client.directory / "identity" / "client.json"
            file.write_text(re.sub(r"localhost:\d+", f"127.0.0.1:{port}", file.read_text()))
            async with client.running():
                await client.hear("disconnected", 1)

    asyncio.run(scenario())
    assert says in client.texts("disconnected")[0]


@pytest.mark.parametrize(
    ("ahead", "says"),
    [
        (timedelta(days=3), "this clock is behind, or the server's ahead, by 3 days"),
        (timedelta(days=-4), "this clock is ahead, or the server's behind, by 3 days"),
    ],
)
def test_clocks_that_let_nobody_in(client: Client, ahead: timedelta, says: str) -> None:
    """The agent's line and doctor's name the clock, not the authority."""

    async def scenario() -> list[str]:
        client.fleet.ahead = ahead
        await client.fleet.start()
        client.enroll()
        async with client.running():
            await client.hear("disconnected", 1)
        found = []
        async for finding in examine(client.directory):
            if finding.subject == "server":
                found.append(finding.text)
                break
        await client.fleet.stop()
        return found

    (doctor,) = asyncio.run(scenario())
    assert says in client.texts("disconnected")[0]
    assert says in doctor


def test_a_clock_that_is_wrong_and_lets_in(client: Client) -> None:
    """Of an hour the agent warns once, and it goes by the server's clock for its certificate."""

    async def scenario() -> None:
        client.fleet.ahead = timedelta(minutes=-90)
        async with client.connected():
            await client.hear("warning", 1)
            client.fleet.disconnect()
            await client.hear("connected", 2)

    asyncio.run(scenario())
    (text,) = client.texts("warning")
    assert text.startswith("this machine's clock is 90 minutes ahead of the server's, and certi")


def test_faults_of_a_clock() -> None:
    """A minute is nothing; what a server says that is no time changes nothing."""
    assert clock_fault(59.0) is None and clock_fault(-59.0) is None
    assert "3 days behind" in (clock_fault(-3 * 86400.0) or "")
    clock = Clock()
    for nonsense in (float("nan"), float("inf"), 0.0, -1.0):
        clock.compare(nonsense, sent_s=1e9, received_s=1e9)
    assert clock.skew_s == 0.0
    assert clock_fault(1e300) is not None


def test_causes_are_compared_without_their_numbers(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that says the time, or gRPC's words with a port, is not another cause each minute."""
    looks, minute = [], iter(range(1000))

    def look(*_: object, **__: object) -> str:
        looks.append(1)
        return f"this clock says 12:{next(minute)}"

    monkeypatch.setattr(reconnecting, "why_not_reached", look)
    said: list[Event] = []

    async def scenario() -> None:
        await client.fleet.start()
        identity = client.enroll().load()
        await client.fleet.stop()
        outage, to = Outage(said.append), (identity.fleet_address, identity.ca_pem)
        for attempt in range(100):
            error = UnreachableError(f"ipv4:127.0.0.1:{attempt}: refused")
            await outage.tell(error, *to, welcomed=False, now_s=0.0)
        await outage.tell(UnreachableError("gone"), *to, welcomed=True, now_s=0.0)

    asyncio.run(scenario())
    assert len(looks) <= 10
    assert [event.text.partition(" 12")[0] for event in said] == [
        "this clock says", "gone; trying again",
    ]  # fmt: skip


class Failed(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """What gRPC raises."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._said = code, details

    def code(self) -> grpc.StatusCode:
        return self._said[0]

    def details(self) -> str:
        return self._said[1]


def test_no_fleet_and_no_grpc() -> None:
    """The enrolment listener's port, and a web server with TLS, have sentences too."""
    says = "a server has one for enrolment and one for its fleet"
    with pytest.raises(ProtocolError, match=says), rpc_errors("h:1"):
        raise Failed(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
    says = "a web server or a proxy answers there, with the status 502"
    with pytest.raises(UnreachableError, match=says), rpc_errors("h:1"):
        raise Failed(grpc.StatusCode.UNAVAILABLE, "Received http2 header with status: 502")
