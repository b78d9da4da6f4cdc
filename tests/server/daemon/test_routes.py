"""Who may make which call: every call of the protocol, by everybody there is."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterable, AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import daemon_house
import grpc
import grpc.aio
import pytest
from daemon_house import SERVICES, Code, House, in_a_house
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from meadow.server.daemon import administration, audit_trail
from meadow.server.daemon.daemon import Daemon
from meadow.server.daemon.roles import ROLE_WORDS
from meadow.server.daemon.routes import ENROLMENT, ROUTES
from meadow.server.daemon.server_dir import AdminIdentity
from meadow.transport import fleet_pb2 as pb
from meadow.transport.authority import Authority
from meadow.transport.keys import KeyPair, create_request
from meadow.transport.tls import channel_credentials

METHODS = [method for service in ("Enrollment", "Fleet", "Admin") for method in SERVICES[service].methods]  # fmt: skip
AGENTS, ADMINS = "agent", "administrator"
ALLOWED = {
    "Enroll": AGENTS,
    "Connect": AGENTS,
    "Download": AGENTS,
    "Upload": AGENTS,
    "Renew": AGENTS,
    "Status": f"viewer operator {ADMINS}",
    "Sites": f"viewer operator {ADMINS}",
    "Runs": f"viewer operator {ADMINS}",
    "ShowRun": f"viewer operator {ADMINS}",
    "Watch": f"viewer operator {ADMINS}",
    "Pull": f"operator {ADMINS}",
    "Submit": f"operator {ADMINS}",
    "Stop": f"operator {ADMINS}",
    "Resume": f"operator {ADMINS}",
    "Tag": f"operator {ADMINS}",
    "Events": f"viewer operator {ADMINS}",
    "Invite": ADMINS,
    "Revoke": ADMINS,
}
UNREACHED = ("nobody", "foreign", "foreign administrator")


def pair_of(authority: Authority, folder: Path, name: str, role: str, days: float = 1.0) -> KeyPair:
    """Issue a certificate."""
    key = folder / f"{name}.pem"
    pem = authority.issue_client(
        create_request(name, key), name=name, role=role, now=datetime.now(UTC), days=days  # type: ignore[arg-type]
    )  # fmt: skip
    return KeyPair(key_pem=key.read_bytes(), certificate_pem=pem)


def given(house: House, folder: Path, name: str, word: str) -> KeyPair:
    """Give somebody a role, as the command does, and return what is in the file."""
    path = house.home.add_role(name, word, folder / f"{name}.json", days=1.0, now=datetime.now(UTC))
    assert path.stat().st_mode & 0o777 == 0o600
    identity = AdminIdentity.read(path)
    return KeyPair(key_pem=identity.key_pem, certificate_pem=identity.certificate_pem)


async def enrolled(house: House, folder: Path, name: str) -> KeyPair:
    """Enrol a client."""
    token, _ = house.home.invite(name, hours=1.0, now_s=house.daemon._clock())
    csr = create_request(name, folder / f"{name}.pem")
    request = pb.EnrollRequest(token=token, csr_pem=csr)
    async with channel(house, None, "enroll") as opened:
        call = opened.stream_stream("/meadow.v1.Enrollment/Enroll")(
            iter([request.SerializeToString()])
        )
        (answer,) = [each async for each in call]
    pem = pb.Certificate.FromString(answer).certificate_pem
    return KeyPair(key_pem=(folder / f"{name}.pem").read_bytes(), certificate_pem=pem)


def channel(house: House, pair: KeyPair | None, where: str = "fleet") -> grpc.aio.Channel:
    """Connect to a listener."""
    credentials = channel_credentials(house.home.authority.certificate_pem, pair)
    return grpc.aio.secure_channel(house.addresses[where], credentials)


RESETS_MAX = 4


async def ended(opened: grpc.aio.Channel, method: MethodDescriptor) -> tuple[Code, str]:
    """Make a call that changes nothing where it is allowed, and return how it ended.

    A call that the server ends before its request has left may reach its caller as a reset stream, which
    gRPC calls an internal error: it is made again. An internal error of the server's stays one.
    """
    for _ in range(RESETS_MAX):
        found = await ended_once(opened, method)
        if found[0] != Code.INTERNAL:
            break
    return found


async def ended_once(opened: grpc.aio.Channel, method: MethodDescriptor) -> tuple[Code, str]:
    """Make a call that changes nothing where it is allowed, and return how it ended."""
    kind: Any = GetMessageClass(method.input_type)
    fields = {field.name for field in method.input_type.fields}
    values: dict[str, Any] = dict.fromkeys(fields & {"id", "run_id"}, 999)
    values |= dict.fromkeys(fields & {"name"}, "none-such")
    request = kind(**values)
    if method.name == "Submit":
        request = pb.SubmitMessage(open=pb.SubmitOpen(name="/", settings=["password=geheim"]))
    call = opened.stream_stream(f"/{method.containing_service.full_name}/{method.name}")(
        iter([request.SerializeToString()])
    )
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return Code.OK, ""


def audited(house: House) -> list[dict[str, Any]]:
    """Return the audit log, which is whole."""
    log = house.home.audit_log()
    assert log.verify().problem == ""
    return log.lines(10_000)


def test_every_call_has_a_route() -> None:
    """A new call is not served to anybody before it is decided who may make it."""
    names = {f"{method.containing_service.name}.{method.name}" for method in METHODS}
    assert set(ROUTES) == names and {method.name for method in METHODS} == set(ALLOWED)
    assert [name for name, route in ROUTES.items() if route is ENROLMENT] == ["Enrollment.Enroll"]
    users = set(ROLE_WORDS.values())
    for name, route in ROUTES.items():
        apart = (
            set(route.roles) <= users if name.startswith("Admin") else route.roles <= ("client",)
        )
        assert apart, f"{name} is for agents and for those who administer"


def test_every_call_by_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell of the table, with a certificate of each kind, on the real listeners."""
    monkeypatch.setattr(audit_trail, "SIMILAR_BURST", 1000)
    monkeypatch.setattr(audit_trail, "REFUSED_BURST", 1000)

    async def scenario(house: House) -> None:
        own, other = house.home.authority, Authority.create(now=datetime.now(UTC))
        (tmp_path / "foreign").mkdir()
        pairs: dict[str, KeyPair | None] = {
            "nobody": None,
            "foreign": pair_of(other, tmp_path / "foreign", "agent", "client"),
            "foreign administrator": pair_of(other, tmp_path / "foreign", "admin", "admin"),
            "agent": await enrolled(house, tmp_path, "agent"),
            "revoked agent": await enrolled(house, tmp_path, "gone"),
            "forged role": pair_of(own, tmp_path, "vera", "admin"),
            "unlisted": pair_of(own, tmp_path, "una", "admin"),
            "administrator": given(house, tmp_path, "ada", "administrator"),
            "operator": given(house, tmp_path, "otto", "operator"),
            "viewer": given(house, tmp_path, "vera", "viewer"),
            "revoked administrator": given(house, tmp_path, "rex", "administrator"),
        }
        house.home.revoke_role("rex")
        async with channel(house, house.pair()) as opened:
            revoke = opened.stream_stream("/meadow.v1.Admin/Revoke")
            gone = pb.SiteName(name="gone").SerializeToString()
            assert [each async for each in revoke(iter([gone]))]
        for who, pair in pairs.items():
            async with channel(house, pair) as fleet, channel(house, pair, "enroll") as enroll:
                for method in METHODS:
                    enrolls = method.containing_service.name == "Enrollment"
                    code, text = await ended(enroll if enrolls else fleet, method)
                    at = (who, method.name, code, text)
                    if enrolls:
                        assert code == Code.INVALID_ARGUMENT and "request" in text, at
                    elif who in UNREACHED:
                        assert code == Code.UNAVAILABLE, at
                    elif who in ALLOWED[method.name].split():
                        assert code not in (
                            Code.PERMISSION_DENIED,
                            Code.UNAVAILABLE,
                            Code.INTERNAL,
                        ), at
                        assert "Traceback" not in text
                    else:
                        assert code == Code.PERMISSION_DENIED, at
                    if not enrolls and who not in UNREACHED:  # nor on the other listener
                        code, _ = await ended(enroll, method)
                        assert code == Code.UNIMPLEMENTED, at
        lines = audited(house)
        told = {(line["who"], line["call"].partition(".")[2], line["outcome"]) for line in lines}
        names = {"agent": "agent", "gone": "", "ada": "administrator", "otto": "operator",
                 "vera": "viewer", "rex": "", "una": ""}  # fmt: skip
        for name, who in names.items():
            for method in (each for each in METHODS if each.name != "Enroll"):
                allowed = who in ALLOWED[method.name].split() if who else False
                if not allowed:
                    assert (name, method.name, "refused") in told, (name, method.name)
                elif who != "agent":
                    assert {(name, method.name, each) for each in ("begun", "read")} & told
        assert "geheim" not in json.dumps(lines) and "password" in json.dumps(lines)

    in_a_house(tmp_path / "server", scenario)


def test_a_call_without_a_route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused to everybody, the administrator too, and its handler is not reached."""

    async def reached(*_: Any) -> Any:
        raise AssertionError("its handler runs")

    async def scenario(house: House) -> None:
        agent = await enrolled(house, tmp_path, "agent")
        for method in SERVICES["Admin"].methods:
            monkeypatch.delitem(ROUTES, f"Admin.{method.name}")
        for method in SERVICES["Fleet"].methods:
            monkeypatch.delitem(ROUTES, f"Fleet.{method.name}")
        for pair in (house.pair(), agent):
            async with channel(house, pair) as opened:
                for method in METHODS[1:]:
                    code, text = await ended(opened, method)
                    assert (code, "nobody" in text) == (Code.PERMISSION_DENIED, True), method.name
        monkeypatch.undo()

    in_a_house(tmp_path / "server", scenario)


async def first_of(stream: AsyncIterable[bytes]) -> bytes:
    """Return a stream's first message."""
    async for message in stream:
        return message
    raise AssertionError("it has ended")


def test_revoked_while_a_call_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that has begun ends, with a message coming or without; a submission is not taken."""
    monkeypatch.setattr(administration, "ADMITTED_EVERY_S", 0.05)

    async def scenario(house: House) -> None:
        watcher = given(house, tmp_path, "vera", "viewer")
        journal, run = house.daemon._journal, house.run_id
        journal.runs.status(run, "running", now_s=0.0)
        journal.events.record(run, "begun", "{}", now_s=0.0)
        begun, released = asyncio.Event(), asyncio.Event()

        async def pieces() -> AsyncIterator[bytes]:
            yield pb.SubmitMessage(open=pb.SubmitOpen(name="x", size_bytes=9)).SerializeToString()
            begun.set()
            await released.wait()

        async with channel(house, watcher) as opened:
            watch = opened.stream_stream("/meadow.v1.Admin/Watch")
            call = watch(iter([pb.RunId(id=run).SerializeToString()]))
            assert pb.RunEvent.FromString(await first_of(call)).kind == "begun"
            house.home.revoke_role("vera")
            with pytest.raises(grpc.aio.AioRpcError, match="was revoked"):
                await first_of(call)
        async with channel(house, given(house, tmp_path, "otto", "operator")) as opened:
            submit = opened.stream_stream("/meadow.v1.Admin/Submit")(pieces())
            await begun.wait()
            while not any(line["call"] == "Admin.Submit" for line in audited(house)):
                await asyncio.sleep(0.01)
            house.home.revoke_role("otto")
            released.set()
            with pytest.raises(grpc.aio.AioRpcError, match="was revoked"):
                await first_of(submit)
        assert [row.id for row in journal.runs.all()] == [run]
        (tmp_path / "vera.json").unlink()
        async with channel(house, given(house, tmp_path, "vera", "viewer")) as opened:  # a new one
            code, _ = await ended(opened, SERVICES["Admin"].methods_by_name["Runs"])
            assert code == Code.OK

    in_a_house(tmp_path / "server", scenario)


def test_an_expired_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection may outlast it: calls are refused all the same."""
    late: list[float] = []
    late_daemon = partial(Daemon, clock=lambda: time.time() + sum(late))
    monkeypatch.setattr(daemon_house, "Daemon", late_daemon)

    async def scenario(house: House) -> None:
        runs = SERVICES["Admin"].methods_by_name["Runs"]
        async with channel(house, given(house, tmp_path, "ada", "administrator")) as opened:
            assert (await ended(opened, runs))[0] == Code.OK
            late.append(2 * 86400.0)
            assert (await ended(opened, runs))[0] == Code.PERMISSION_DENIED

    in_a_house(tmp_path / "server", scenario)


def test_actions_and_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An action has a line before and after; reads and refusals are counted beyond a rate."""

    async def scenario(house: House) -> None:
        methods = SERVICES["Admin"].methods_by_name
        async with channel(house, given(house, tmp_path, "vera", "viewer")) as opened:
            for _ in range(50):
                assert (await ended(opened, methods["Runs"]))[0] == Code.OK
                assert (await ended(opened, methods["Stop"]))[0] == Code.PERMISSION_DENIED
        async with channel(house, given(house, tmp_path, "ada", "administrator")) as opened:
            assert (await ended(opened, methods["Stop"]))[0] == Code.NOT_FOUND
        while len([line for line in audited(house) if line["who"] == "ada"]) < 2:
            await asyncio.sleep(0.01)  # a status travels before its line is written
        lines = audited(house)
        by_vera = [line["outcome"] for line in lines if line["who"] == "vera"]
        assert by_vera.count("read") == by_vera.count("refused") == audit_trail.SIMILAR_BURST
        begun, end = [line for line in lines if line["who"] == "ada"]
        assert (begun["role"], begun["call"], begun["what"]) == (
            "admin",
            "Admin.Stop",
            {"run": 999},
        )
        assert (begun["outcome"], end["outcome"]) == ("begun", "failed")
        assert end["what"]["of"] == begun["n"] and "no run 999" in end["what"]["reason"]
        local = [(line["call"], line["outcome"]) for line in lines if line["role"] == "local"]
        assert local == [
            ("server start", "ok"),
            *[("server role add", outcome) for outcome in ("begun", "ok")] * 2,
        ]

    in_a_house(tmp_path / "server", scenario)


def test_an_action_that_cannot_be_recorded(tmp_path: Path) -> None:
    """It is not made; reads still are."""

    async def scenario(house: House) -> None:
        methods = SERVICES["Admin"].methods_by_name
        folder = house.home.folder / "audit"
        folder.rename(house.home.folder / "elsewhere")
        folder.write_text("a file")
        async with channel(house, house.pair()) as opened:
            assert (await ended(opened, methods["Runs"]))[0] == Code.OK
            code, text = await ended(opened, methods["Stop"])
            assert code == Code.INTERNAL and "audit" in text
        folder.unlink()

    in_a_house(tmp_path / "server", scenario)


def test_refusals_are_bounded() -> None:
    """However many callers there are, and whoever they say they are."""

    class Log:
        lines = 0
        counted = 0

        def append(self, *, what: dict[str, Any], **fields: Any) -> int:
            self.lines += 1
            self.counted += 1 + what.get("unrecorded_before", 0)
            return self.lines

    log, now = Log(), [0.0]
    trail = audit_trail.AuditTrail(log, clock=lambda: now[0])  # type: ignore[arg-type]

    async def flood() -> None:
        for number in range(3000):
            await trail.refused(who=f"x{number}", role="client", call="x", what={})
        assert log.lines == audit_trail.REFUSED_BURST
        await trail.refused(who="vera", role="viewer", call="x", what={})
        assert log.lines == audit_trail.REFUSED_BURST + 1, "clients hide nobody with a role"
        now[0] += 10 * audit_trail.REFUSED_EVERY_S
        for _ in range(3000):
            await trail.refused(who="", role="", call="x", what={})
        assert log.lines == audit_trail.REFUSED_BURST + 1 + audit_trail.SIMILAR_BURST
        now[0] += 2 * audit_trail.SIMILAR_EVERY_S
        await trail.refused(who="", role="", call="x", what={})
        assert log.counted == 6002

    asyncio.run(flood())


def test_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted for lines that may never come is bounded, too."""
    monkeypatch.setattr(audit_trail, "UNRECORDED_MAX", 3)
    monkeypatch.setattr(audit_trail, "SIMILAR_BURST", 0)
    trail = audit_trail.AuditTrail(None, clock=lambda: 0.0)  # type: ignore[arg-type]

    async def flood() -> None:
        for number in range(20):
            await trail.read(who=f"x{number}", role="viewer", call="x", what={}, address="")

    asyncio.run(flood())
    assert len(trail._unrecorded) == 3
