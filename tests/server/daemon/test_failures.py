"""Calls that fail: each of every service is answered with a status and a sentence, whatever has happened."""

from __future__ import annotations

import errno
import logging
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from daemon_house import SERVICES, Code, House, in_a_house
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from meadow.apps.folder import pack
from meadow.errors import DamageError, StoreError
from meadow.server.daemon.calls import FirstMessages
from meadow.server.daemon.peer_auth import Callers
from meadow.server.daemon.threads import JournalThread
from meadow.transport import fleet_pb2 as pb
from meadow.transport.keys import create_request

SECRET = "/srv/hidden"
METHODS = [
    pytest.param(method, id=method.full_name)
    for service in SERVICES.values()
    for method in service.methods
]
ADMIN = [pytest.param(method, id=method.name) for method in SERVICES["Admin"].methods]


def full(path: str = SECRET) -> StoreError:
    """Return what a journal raises on a full disk."""
    error = StoreError(f"{path}/journal.sqlite: database or disk is full")
    error.__cause__ = sqlite3.OperationalError("database or disk is full")
    return error


CASES = {
    "the journal's disk is full": (full(), Code.RESOURCE_EXHAUSTED, "make room on the server's disk"),
    "a file's disk is full": (
        OSError(errno.ENOSPC, "No space left on device", f"{SECRET}/app"),
        Code.RESOURCE_EXHAUSTED,
        f"{SECRET}/app: No space left on device; make room",
    ),
    "a quota": (OSError(errno.EDQUOT, "quota exceeded", SECRET), Code.RESOURCE_EXHAUSTED, "room"),
    "SQLite's own": (sqlite3.OperationalError("disk I/O error"), Code.INTERNAL, "check the server's"),
    "no rights": (
        PermissionError(errno.EACCES, "Permission denied", SECRET),
        Code.INTERNAL,
        f"{SECRET}: Permission denied; check the server's disk and its folder's permissions",
    ),
    "damage": (DamageError(f"{SECRET} is damaged; restore it"), Code.DATA_LOSS, "restore it"),
    "a defect": (RuntimeError(f"{SECRET} and no more"), Code.INTERNAL, "its log has the details"),
    "a defect in time": (TimeoutError(SECRET), Code.INTERNAL, "its log has the details"),
}  # fmt: skip


def test_every_call_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is raised in it, a call of any service ends with a code, a sentence, and a line in the log."""
    raised: list[Exception] = []

    async def fails(*_: Any, **__: Any) -> Any:
        raise raised[-1]

    async def scenario(house: House) -> None:
        for patched in (Callers, "admin"), (Callers, "site"), (FirstMessages, "next"):
            monkeypatch.setattr(*patched, fails)
        for name, (error, code, text) in CASES.items():
            raised.append(error)
            for method in (each.values[0] for each in METHODS):
                caplog.clear()
                found, said = await house.call(method)
                assert found not in (Code.UNKNOWN, Code.CANCELLED), (name, method.full_name)
                assert caplog.records and method.name in caplog.text, (name, method.full_name)
                expected = "defect" in name
                assert bool(caplog.records[0].exc_info) == expected
                if method.containing_service.name == "Admin":
                    assert (found, text in said) == (code, True), (name, method.name, said)
                    assert (SECRET in said) <= (not expected)
                else:
                    assert found == (Code.INTERNAL if expected else Code.UNAVAILABLE)
                    assert SECRET not in said
        monkeypatch.undo()

    caplog.set_level(logging.ERROR, logger="meadow.server")
    in_a_house(tmp_path / "server", scenario)


def request_of(method: MethodDescriptor, house: House, app: bytes) -> list[Any]:
    """Return what an administrator sends who wants something that needs the journal."""
    if method.name == "Submit":
        opened = pb.SubmitOpen(name="app", size_bytes=len(app))
        return [pb.SubmitMessage(open=opened), pb.SubmitMessage(zip=app)]
    kind = GetMessageClass(method.input_type)
    fields = {field.name for field in method.input_type.fields}
    values: dict[str, Any] = dict.fromkeys(fields & {"id", "run_id"}, house.run_id)
    if method.name == "Invite":
        values = {"name": "site-1", "hours": 1.0}
    return [kind(**values)]


def test_the_administrators_calls_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each says that the disk is full, where, and what to do; the server goes on."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "meadow.toml").write_text("")
    app = pack(tmp_path / "app")

    async def fails(*_: Any, **__: Any) -> Any:
        raise full(str(tmp_path))

    async def scenario(house: House) -> None:
        with monkeypatch.context() as disk:
            disk.setattr(JournalThread, "__call__", fails)
            for method in SERVICES["Admin"].methods:
                code, said = await house.call(method, *request_of(method, house, app))
                assert code == Code.RESOURCE_EXHAUSTED, (method.name, code, said)
                assert said.startswith(
                    f"{tmp_path}/journal.sqlite: database or disk is full; make room"
                )
        assert (await house.daemon._thread(house.daemon._journal.runs.all))[0].status == "failed"

    in_a_house(tmp_path / "server", scenario)


def test_an_app_that_the_disk_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has failed with the cause, and nothing of it is left."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "meadow.toml").write_text("")
    app = pack(tmp_path / "app")

    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "task.py")

    async def scenario(house: House) -> None:
        submit = SERVICES["Admin"].methods_by_name["Submit"]
        with monkeypatch.context() as disk:
            disk.setattr("meadow.server.daemon.admin.unpack", no_room)
            code, said = await house.call(submit, *request_of(submit, house, app))
        assert code == Code.RESOURCE_EXHAUSTED
        assert (
            said
            == "task.py: No space left on device; make room on the server's disk, then try again"
        )
        run = (await house.daemon._thread(house.daemon._journal.runs.all))[-1]
        assert run.status == "failed" and "No space left" in run.cause
        assert not (tmp_path / "server" / "runs" / str(run.id)).exists()

    in_a_house(tmp_path / "server", scenario)


def test_a_submission_that_a_kill_cut_short(tmp_path: Path) -> None:
    """It does not arrive for ever."""

    async def scenario(house: House) -> None:
        run = (await house.daemon._thread(house.daemon._journal.runs.all))[-1]
        assert (run.status, run.cause) == ("failed", "its app did not arrive; submit it again")

    in_a_house(tmp_path / "server", scenario, status="arriving")


def test_enrolment_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is not used up by a certificate that nobody got."""

    async def scenario(house: House) -> None:
        enroll = SERVICES["Enrollment"].methods_by_name["Enroll"]
        token, _ = house.home.invite("site-1", hours=1.0, now_s=datetime.now(UTC).timestamp())
        request = pb.EnrollRequest(token=token, csr_pem=create_request("new", tmp_path / "key.pem"))

        def no_room(*_: Any, **__: Any) -> None:
            raise full()

        with monkeypatch.context() as disk:
            disk.setattr("meadow.server.journal.site_table.SiteTable.certify", no_room)
            code, said = await house.call(enroll, request)
        assert (code, said) == (
            Code.UNAVAILABLE, "the server cannot use its disk at present; try again later"
        )  # fmt: skip
        certificate = await house.daemon._issuer.enroll(token, request.csr_pem)
        assert certificate.client == "site-1"

    in_a_house(tmp_path / "server", scenario)
