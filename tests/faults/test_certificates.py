"""Cases 17 and 18: who may not call at all, and who may not call as somebody else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from meadow.cli.main import main
from meadow.transport import fleet_pb2 as pb
from meadow.transport.authority import Authority
from meadow.transport.fleet_pb2_grpc import AdminStub, EnrollmentStub, FleetStub
from meadow.transport.keys import KeyPair, create_request
from meadow.transport.protocol import PROTOCOL_VERSION
from meadow.transport.tls import channel_credentials

from .arena import Arena
from .live_server import CALL_S, OPTIONS, LiveServer, refused
from .raw_client import RawClient, Stream, arrays_of, metrics_of
from .test_bad_updates import ALONE

DENIED = grpc.StatusCode.PERMISSION_DENIED
NOW = datetime.now(UTC)


@pytest.fixture
def victim(server: LiveServer, tmp_path: Path) -> Iterator[RawClient]:
    """An honest client, who is served before and after the attack."""
    made = RawClient(server, "victim", tmp_path)
    made.connect()
    yield made
    made.close()
    server.serves(made.pair)


def issued(
    authority: Authority, folder: Path, name: str = "victim", *, now: datetime = NOW,
    days: float = 1.0,
) -> KeyPair:  # fmt: skip
    """Return a new key with a certificate by any authority, for any name and time."""
    key = folder / "attacker.pem"
    pem = authority.issue_client(create_request(name, key), name=name, now=now, days=days)
    return KeyPair(key_pem=key.read_bytes(), certificate_pem=pem)


STRANGERS: dict[str, Callable[[LiveServer, Path], KeyPair | None]] = {
    "no certificate": lambda server, folder: None,
    "expired": lambda server, folder: issued(
        server.home.authority, folder, now=NOW - timedelta(days=3)
    ),
    "not valid yet": lambda server, folder: issued(
        server.home.authority, folder, now=NOW + timedelta(days=3)
    ),
    "of another authority": lambda server, folder: issued(Authority.create(now=NOW), folder),
}


@pytest.mark.parametrize("case", STRANGERS)
def test_strangers(server: LiveServer, victim: RawClient, tmp_path: Path, case: str) -> None:
    """Without a valid certificate of the server's own authority, no call is even made."""
    pair = STRANGERS[case](server, tmp_path)
    hello = pb.AgentMessage(hello=pb.Hello(protocol=PROTOCOL_VERSION, client="victim"))
    with server.channel(pair) as channel:
        for call in (
            lambda: Stream(FleetStub(channel), hello).next("welcome"),
            lambda: FleetStub(channel).Renew(pb.RenewRequest(), timeout=CALL_S),
            lambda: AdminStub(channel).Status(pb.Empty(), timeout=CALL_S),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_issued_but_not_in_use(server: LiveServer, victim: RawClient, tmp_path: Path) -> None:
    """A genuine certificate that the journal does not know is refused."""
    for name, reason in (("victim", "was replaced"), ("nobody", "is not enrolled")):
        pair = issued(server.home.authority, tmp_path, name)
        with server.channel(pair) as channel, refused(DENIED, match=reason):
            FleetStub(channel).Renew(pb.RenewRequest(), timeout=CALL_S)


def test_server_certificate(server: LiveServer, victim: RawClient) -> None:
    """The server's own kind of certificate opens no door."""
    pair = server.home.authority.issue_server(["localhost"], now=NOW, days=1)
    with server.channel(pair) as channel, pytest.raises(grpc.RpcError) as caught:
        AdminStub(channel).Status(pb.Empty(), timeout=CALL_S)
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, DENIED)


def test_client_as_server(server: LiveServer, victim: RawClient, tmp_path: Path) -> None:
    """A client cannot pose as the server: its certificate is good for nothing else."""
    mallory = server.enroll("poser", tmp_path)
    credentials = grpc.ssl_server_credentials([(mallory.key_pem, mallory.certificate_pem)])
    listener = grpc.server(ThreadPoolExecutor(1))
    port = listener.add_secure_port("localhost:0", credentials)
    listener.start()
    try:
        shown = channel_credentials(server.ca_pem, victim.pair)
        with (
            grpc.secure_channel(f"localhost:{port}", shown, OPTIONS) as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            FleetStub(channel).Renew(pb.RenewRequest(), timeout=CALL_S)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE  # not UNIMPLEMENTED
    finally:
        listener.stop(None)


def test_hello_as_another(server: LiveServer, victim: RawClient, tmp_path: Path) -> None:
    """A hello in another client's name is refused and recorded; that client stays connected."""
    mallory = RawClient(server, "mallory", tmp_path)
    for claimed in ("victim", "", "MALLORY", "x" * 100_000):
        hello = pb.AgentMessage(hello=pb.Hello(protocol=PROTOCOL_VERSION, client=claimed))
        error = Stream(mallory.stub, hello).ended()
        assert error.code() == DENIED and "mallory" in error.details()
    told = server.events(kind="access_denied")[-4:]
    assert [event["client"] for event in told] == ["mallory"] * 4
    assert [event["claimed"] for event in told] == ["victim", "", "MALLORY", "x" * 80]
    assert victim.stream is not None and victim.stream.call.is_active()
    mallory.close()


def test_denials_do_not_flood(server: LiveServer, victim: RawClient, tmp_path: Path) -> None:
    """However often a client is turned away, the journal holds a few records of it."""
    mallory = RawClient(server, "flooder", tmp_path)
    hello = pb.AgentMessage(hello=pb.Hello(protocol=PROTOCOL_VERSION, client="victim"))
    for _ in range(100):
        Stream(mallory.stub, hello).ended()
    told = [e for e in server.events(kind="access_denied") if e.get("client") == "flooder"]
    assert 10 <= len(told) < 60
    mallory.close()


def test_roles(server: LiveServer, victim: RawClient) -> None:
    """A client cannot administer, an administrator is no client; both are recorded."""
    before = len(server.events(kind="access_denied"))
    stub = AdminStub(victim.channel)
    submission = pb.SubmitMessage(open=pb.SubmitOpen(name="x"))
    for call in (
        lambda: stub.Status(pb.Empty(), timeout=CALL_S),
        lambda: stub.Sites(pb.Empty(), timeout=CALL_S),
        lambda: stub.Revoke(pb.SiteName(name="victim"), timeout=CALL_S),
        lambda: stub.Submit(iter([submission]), timeout=CALL_S),
        lambda: stub.Runs(pb.Empty(), timeout=CALL_S),
        lambda: stub.ShowRun(pb.RunId(id=1), timeout=CALL_S),
        lambda: list(stub.Watch(pb.RunId(id=1), timeout=CALL_S)),
        lambda: stub.Stop(pb.RunId(id=1), timeout=CALL_S),
        lambda: stub.Resume(pb.RunId(id=1), timeout=CALL_S),
        lambda: list(stub.Pull(pb.PullRequest(run_id=1), timeout=CALL_S)),
    ):
        with refused(DENIED, match="'client', not 'admin'"):
            call()
    with server.channel(server.admin_pair) as channel:
        fleet = FleetStub(channel)
        for call in (
            lambda: fleet.Renew(pb.RenewRequest(), timeout=CALL_S),
            lambda: list(fleet.Download(pb.DownloadRequest(), timeout=CALL_S)),
            lambda: fleet.Upload(iter(()), timeout=CALL_S),
        ):
            with refused(DENIED, match="'admin', not 'client'"):
                call()
    assert len(server.events(kind="access_denied")) > before


def test_a_replaced_administrator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Copies of the old admin file open nothing any more, the new one does; no restart between."""
    with closing(LiveServer(tmp_path / "server")) as live:
        folder = str(live.folder)
        for arguments in (
            ["server", "renew-admin", "--dir", folder],
            ["run", "list", "--dir", folder],
        ):
            with pytest.raises(SystemExit) as left:
                main(arguments)
            assert left.value.code == 0
        with refused(DENIED, match="was replaced"):
            live.admin.Status(pb.Empty(), timeout=CALL_S)
        with pytest.raises(SystemExit):
            main(["server", "events", "--dir", folder, "--format", "json"])
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert [event["kind"] for event in told] == ["started", "admin_renewed", "access_denied"]
        assert told[-1]["call"] == "admin" and "was replaced" in told[-1]["reason"]
        (live.folder / "ca" / "admin-serial").unlink()
        with refused(DENIED, match="renew-admin"):
            live.admin.Status(pb.Empty(), timeout=CALL_S)


def test_services_apart(server: LiveServer, victim: RawClient) -> None:
    """The open listener serves enrolment only; the fleet's does not serve it."""
    with server.enrollment() as channel:
        for call in (FleetStub(channel).Renew, AdminStub(channel).Status):
            request = pb.RenewRequest() if "Renew" in str(call._method) else pb.Empty()
            with pytest.raises(grpc.RpcError) as caught:
                call(request, timeout=CALL_S)
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(grpc.RpcError) as caught:
        EnrollmentStub(victim.channel).Enroll(pb.EnrollRequest(), timeout=CALL_S)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_revoked_in_a_round(
    arena: Arena, guest: Callable[[str], RawClient], capsys: pytest.CaptureFixture[str]
) -> None:
    """Who is revoked in the middle of a round is cut off at once; the round ends without it."""
    traitor = guest("traitor")
    traitor.connect()

    def act(client: RawClient, instruction: pb.Instruction) -> None:
        params = arena.one_hot(3)
        blob = client.upload(instruction.id, client.tensors(**params))
        with pytest.raises(SystemExit) as left:
            main(["site", "revoke", client.name, "--dir", str(arena.server.folder)])
        assert left.value.code == 0 and "revoked" in capsys.readouterr().out
        assert client.stream is not None
        reply = pb.Envelope(records=[arrays_of(blob, **params), metrics_of({"num-examples": 1})])
        client.stream.send(
            pb.AgentMessage(reply=pb.Reply(instruction_id=instruction.id, envelope=reply))
        )
        error = client.stream.ended()
        assert error.code() == DENIED and "revoked" in error.details()
        with refused(DENIED, match="revoked"):
            client.upload(instruction.id, b"x")
        with refused(DENIED, match="revoked"):
            client.download(blob)
        with refused(DENIED, match="revoked"):
            client.stub.Renew(pb.RenewRequest(), timeout=CALL_S)
        hello = pb.AgentMessage(hello=pb.Hello(protocol=PROTOCOL_VERSION, client=client.name))
        assert Stream(client.stub, hello).ended().code() == DENIED

    played = arena.play((traitor, act))
    assert played.counted == ALONE
    told = played.told("client_failed")
    assert (told["client"], told["reason"]) == (traitor.node_id, "traitor was revoked")


def test_revoked_and_deaf(arena: Arena, guest: Callable[[str], RawClient]) -> None:
    """A client that does not read that it is revoked is not listened to either."""
    deaf = guest("deaf")
    deaf.connect()

    def act(client: RawClient, instruction: pb.Instruction) -> None:
        stream = client.connect(reads=False)
        arena.server.wait_for_site(client.name, "connected")
        for number in range(1500):  # their acknowledgements fill what it does not read
            late = pb.Reply(instruction_id=f"{number:064}")
            stream.send(pb.AgentMessage(reply=late))
        params = arena.one_hot(3)
        blob = client.upload(instruction.id, client.tensors(**params))
        arena.server.admin.Revoke(pb.SiteName(name=client.name))
        reply = pb.Envelope(records=[arrays_of(blob, **params), metrics_of({"num-examples": 1})])
        stream.send(pb.AgentMessage(reply=pb.Reply(instruction_id=instruction.id, envelope=reply)))

    assert arena.play((deaf, act)).counted == ALONE
