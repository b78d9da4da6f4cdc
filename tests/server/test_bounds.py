"""Bounds of the server that nothing but a test of their own holds."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import threading
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from daemon_house import SERVICES, Code, House, in_a_house

from meadow.errors import LimitError, UnreachableError
from meadow.run import failed_clients
from meadow.run.failed_clients import FailedClients, causes_in
from meadow.server.daemon import (
    audit_limiter,
    blob_service,
    daemon,
    steps,
)
from meadow.server.daemon import (
    audit_limiter as denials,
)
from meadow.server.daemon import (
    stream_limiter as slots,
)
from meadow.server.daemon.admin import APP_ZIP_BYTES_MAX
from meadow.server.daemon.agent_registry import OUTGOING_MAX, AgentLink
from meadow.server.daemon.audit_limiter import Allowance, Denials
from meadow.server.daemon.stream_limiter import Slots
from meadow.server.daemon.threads import JournalThread
from meadow.server.journal import journal as table
from meadow.server.journal.journal import Journal
from meadow.transport import fleet_pb2 as pb
from meadow.transport import pipe
from meadow.transport.tls import channel_credentials

LONG = "x" * 100_000


def test_an_agent_that_does_not_read_is_cut_off() -> None:
    """What waits for it is bounded, and everything else is forgotten."""
    link = AgentLink(1, "deaf")
    for number in range(2 * OUTGOING_MAX):
        link.send(pb.ServerMessage(ack=pb.ReplyAck(instruction_id=str(number))))
    assert link.closed_because == "it does not read what it is sent"
    assert link.outgoing.qsize() <= OUTGOING_MAX


def test_callers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that called longest ago."""
    monkeypatch.setattr(audit_limiter, "CALLERS_MAX", 3)
    shares = Allowance(burst=1, every_s=1.0, clock=lambda: 0.0)
    assert [shares.take(caller) for caller in "abcda"] == [True] * 5
    assert [shares.take(caller) for caller in "cda"] == [False] * 3
    assert len(shares._spent) == 3


def test_refusals_of_a_flood(tmp_path: Path) -> None:
    """Some are written down, and so are those of another caller."""
    journal = Journal(tmp_path / "journal.sqlite")
    thread = JournalThread(journal)

    async def audit(**_: object) -> None:
        raise AssertionError("nobody was refused a call")

    async def refuse() -> list[bool]:
        denied = Denials(journal, thread, audit, clock=lambda: 0.0)
        callers = ["a"] * (2 * denials.BURST) + ["b"]
        return [await denied.record({"why": "no"}, caller=caller) for caller in callers]

    assert asyncio.run(refuse()) == [True] * denials.BURST + [False] * denials.BURST + [True]
    assert len(journal.events.after(0)) == denials.BURST + 1
    thread.close()
    journal.close()


def test_events_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest are dropped, and a line of the log is a line."""
    monkeypatch.setattr(table, "EVENTS_PER_RUN_MAX", 5)
    journal = Journal(tmp_path / "journal.sqlite")
    with caplog.at_level(logging.INFO, logger="meadow.server"):
        for _ in range(12):
            journal.events.record(1, "note", json.dumps({"text": f"a\n{LONG}"}), now_s=0.0)
    assert [row["id"] for row in journal.events.after(1)] == [8, 9, 10, 11, 12]
    assert all(len(each.message) <= table.TEXT_CHARS_MAX for each in caplog.records)
    assert "\n" not in caplog.records[0].message
    journal.close()


def test_a_step_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends, even if nobody else wants its place."""
    monkeypatch.setattr(slots, "PATIENCE_S", 0.001)
    monkeypatch.setattr(slots, "STEP_S_MAX", 0.001)

    async def never() -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        with pytest.raises(UnreachableError, match="a chunk took too long"):
            await Slots(1).step(1, never)

    asyncio.run(scenario())


def test_what_clients_may_send_ahead() -> None:
    """Few clients fill a line of 20 Mbit/s and 200 ms each; many share one bound, above HTTP/2's least."""
    sizes = {clients: blob_service.window_bytes(clients) for clients in (0, 3, 32, 100, 256, 5000)}
    assert sizes[0] == sizes[3] == sizes[32] == blob_service.WINDOW_BYTES_MAX > 20e6 / 8 * 0.2
    assert sizes[5000] == sizes[256] == 65_536 < sizes[100]
    for clients, size in sizes.items():
        assert size == 65_536 or clients * size <= blob_service.WINDOWS_BYTES


def test_reasons_are_short() -> None:
    """What the server itself says of a client that failed."""
    assert len(steps.failed(1, LONG).error.reason) == steps.REASON_CHARS_MAX


def test_failures_that_are_listed() -> None:
    """Of each round, of all rounds, of all causes, and of the sites with each."""
    failures = FailedClients()
    for round_ in range(2 * failed_clients.ROUNDS_MAX):
        for client in range(2 * failed_clients.KEPT_MAX):
            said = {"round": round_, "client": client, "reason": f"{client} of {round_}"}
            failures.take("client_failed", said)
    left = failures.left()
    assert len(left) == failed_clients.ROUNDS_MAX * failed_clients.KEPT_MAX
    assert len(causes_in([], left)) == failed_clients.CAUSES_MAX
    same = [{**each, "reason": "one"} for each in left]
    assert len(causes_in([], same)[0]["clients"]) == failed_clients.SITES_MAX


@pytest.mark.parametrize("size", [pipe.FRAME_BYTES_MAX + 1, (1 << 32) - 1])
def test_a_workers_message(size: int) -> None:
    """It is refused by its length, before anything of it is read."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(size.to_bytes(4, "big"))
        with pytest.raises(LimitError, match=f"a frame of {size} bytes exceeds"):
            pipe.Pipe(ours, pb.WorkerMessage).receive()


def test_what_an_administrator_asks_for(tmp_path: Path) -> None:
    """An app is refused by its declared size, and a run's number is one."""

    async def scenario(house: House) -> None:
        methods = SERVICES["Admin"].methods_by_name
        opened = pb.SubmitOpen(name="app", size_bytes=APP_ZIP_BYTES_MAX + 1)
        code, said = await house.call(methods["Submit"], pb.SubmitMessage(open=opened))
        assert code == Code.RESOURCE_EXHAUSTED and f"at most {APP_ZIP_BYTES_MAX}" in said
        for method in ("ShowRun", "Watch", "Stop", "Resume"):
            code, said = await house.call(methods[method], pb.RunId(id=(1 << 64) - 1))
            assert code == Code.NOT_FOUND, method

    in_a_house(tmp_path / "server", scenario)


@pytest.mark.parametrize("listener", ["fleet", "enroll"])
def test_connections_that_do_not_even_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str
) -> None:
    """One without a handshake is ended."""
    monkeypatch.setattr(daemon, "HANDSHAKE_MS_MAX", 100)

    async def scenario(house: House) -> None:
        host, port = house.addresses[listener].rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        writer.close()

    in_a_house(tmp_path / "server", scenario)


@pytest.mark.parametrize(("bound", "all_taken"), [(daemon.CALLS_WAITING_MAX, True), (500, False)])
def test_calls_wait_while_the_server_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: int, all_taken: bool
) -> None:
    """More than gRPC lets wait by itself are answered once there is time for them, as when thousands
    of clients return at once; beyond the bound calls are cancelled."""
    monkeypatch.setattr(daemon, "CALLS_WAITING_MAX", bound)
    each, connections = daemon.STREAMS_PER_CONNECTION_MAX, 100

    async def scenario(house: House) -> None:
        credentials = channel_credentials(house.home.authority.certificate_pem, house.pair())
        options = [("grpc.use_local_subchannel_pool", 1)]
        with ExitStack() as stack:
            channels = [
                stack.enter_context(
                    grpc.secure_channel(house.addresses["fleet"], credentials, options)
                )
                for _ in range(connections)
            ]
            # from here on, the daemon's event loop stands still: it answers nothing
            for channel in channels:
                grpc.channel_ready_future(channel).result(60)
            calls = [
                channel.unary_unary("/meadow.v1.Admin/Status").future(b"")
                for channel in channels
                for _ in range(each)
            ]
            is_over = threading.Event()
            for call in calls:
                call.add_done_callback(lambda _: is_over.set())
            assert is_over.wait(1.0 if all_taken else 60.0) is not all_taken
            codes = await asyncio.to_thread(lambda: [call.code() for call in calls])
        assert (Code.CANCELLED not in codes) is all_taken

    in_a_house(tmp_path / "server", scenario)


def test_a_strangers_connection_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is a good one, and says nothing."""
    monkeypatch.setattr(daemon, "ENROLL_CONNECTION_MS_MAX", 100)

    async def scenario(house: House) -> None:
        host, port = house.addresses["enroll"].rsplit(":", 1)
        context = ssl.create_default_context(cadata=house.home.authority.certificate_pem.decode())
        context.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        assert await reader.read()
        writer.close()

    in_a_house(tmp_path / "server", scenario)
