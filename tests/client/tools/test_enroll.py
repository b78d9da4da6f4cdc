"""Enrolment against a fake listener with real TLS, and the commands around it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from meadow.client.agent.lock import hold_lock
from meadow.client.agent.state import AgentState
from meadow.client.owner.database import AgentDatabase
from meadow.client.owner.identity_folder import IdentityFolder
from meadow.client.tools.enroll import enroll
from meadow.config.client_config import load_client_config
from meadow.errors import ConfigError, IdentityError, MeadowError, StoreError, UnreachableError
from meadow.transport import fleet_pb2 as pb
from meadow.transport.authority import Authority
from meadow.transport.fleet_pb2_grpc import EnrollmentServicer, add_EnrollmentServicer_to_server
from meadow.transport.tls import server_credentials

from ..conftest import COUNTING_APP, PYPROJECT


class FakeEnrollment(EnrollmentServicer):
    """An enrolment listener that knows one token."""

    def __init__(self) -> None:
        now = datetime.now(UTC)
        self.authority = Authority.create(now=now)
        self.token: str | None = "good"
        pair = self.authority.issue_server(["localhost"], now=now, days=1)
        self.server = grpc.server(ThreadPoolExecutor(2))
        add_EnrollmentServicer_to_server(self, self.server)
        port = self.server.add_secure_port(
            "127.0.0.1:0", server_credentials(lambda: pair, ca_pem=None)
        )
        self.address = f"localhost:{port}"
        self.server.start()

    def Enroll(self, request: pb.EnrollRequest, context: grpc.ServicerContext) -> pb.Certificate:
        if request.token != self.token:
            text = "the token is not valid: unknown, used or expired; ask for a new one"
            context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        self.token = None
        pem = self.authority.issue_client(
            request.csr_pem, name="site-1", now=datetime.now(UTC), days=7
        )
        return pb.Certificate(
            certificate_pem=pem,
            ca_pem=self.authority.certificate_pem,
            client="site-1",
            node_id=4,
            fleet_address="localhost:1",
        )


@pytest.fixture
def listener() -> Iterator[FakeEnrollment]:
    """Run an enrolment listener."""
    fake = FakeEnrollment()
    yield fake
    fake.server.stop(None).wait()


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return an app's folder."""
    folder = tmp_path / "counting"
    folder.mkdir()
    (folder / "counting.py").write_text(COUNTING_APP)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    return folder


def redeem(directory: Path, listener: FakeEnrollment, *, token: str = "good") -> None:
    """Enrol with the right address and fingerprint."""
    fingerprint = listener.authority.fingerprint
    enroll(directory, server=listener.address, token=token, ca_fingerprint=fingerprint)


def test_enrolls(tmp_path: Path, listener: FakeEnrollment, app: Path) -> None:
    """A token gives an identity whose key never left, and an owner's file with the app in it."""
    directory = tmp_path / "client"
    identity = enroll(
        directory,
        server=listener.address,
        token=" good\n",
        ca_fingerprint=listener.authority.fingerprint.upper(),
        apps=[app],
    )
    assert (identity.name, identity.node_id, identity.fleet_address) == ("site-1", 4, "localhost:1")
    assert IdentityFolder(directory).load() == identity
    assert (directory / "identity" / "key.pem").stat().st_mode & 0o777 == 0o600
    assert load_client_config(directory).apps == {"counting": str(app)}


def test_used_token(tmp_path: Path, listener: FakeEnrollment) -> None:
    """A token that was used says so, and the identity that is there stays."""
    directory = tmp_path / "client"
    redeem(directory, listener)
    before = IdentityFolder(directory).load()
    with pytest.raises(IdentityError, match="unknown, used or expired; ask for a new one"):
        redeem(directory, listener)
    assert IdentityFolder(directory).load() == before


def test_wrong_fingerprint(tmp_path: Path, listener: FakeEnrollment) -> None:
    """A server with another authority gets neither the token nor a request."""
    with pytest.raises(IdentityError, match="fingerprint"):
        enroll(tmp_path / "client", server=listener.address, token="good", ca_fingerprint="0" * 64)
    assert listener.token == "good"
    assert not IdentityFolder(tmp_path / "client").exists


@pytest.mark.parametrize("server", ["localhost", "localhost:", ":1", "localhost:0", "h:99999"])
def test_wrong_address(tmp_path: Path, server: str) -> None:
    """An address that is none is an error of the call."""
    with pytest.raises(ConfigError, match="HOST:PORT"):
        enroll(tmp_path / "client", server=server, token="t", ca_fingerprint="0" * 64)


def test_no_server(tmp_path: Path, listener: FakeEnrollment) -> None:
    """Where nobody listens, the error says who does not answer."""
    listener.server.stop(None).wait()
    with pytest.raises(UnreachableError, match=listener.address):
        redeem(tmp_path / "client", listener)


def test_running_agent(tmp_path: Path, listener: FakeEnrollment) -> None:
    """An identity is not taken away under a running agent."""
    directory = tmp_path / "client"
    directory.mkdir()
    with hold_lock(directory), pytest.raises(StoreError, match="running"):
        redeem(directory, listener)
    assert listener.token == "good"


def test_again_keeps_the_runs_of_the_same_server(tmp_path: Path, listener: FakeEnrollment) -> None:
    """After a new token of the same server, an app finds its state again."""
    directory = tmp_path / "client"
    redeem(directory, listener)
    remember(directory)
    listener.token = "next"
    (directory / "client.toml").write_text("# mine\n")
    redeem(directory, listener, token="next")
    assert remembered(directory) == b"state"
    assert (directory / "client.toml").read_text() == "# mine\n"


def test_another_server_gets_nothing_of_the_first(tmp_path: Path, listener: FakeEnrollment) -> None:
    """Runs of two servers may have the same number; what belongs to one is not the other's."""
    directory = tmp_path / "client"
    redeem(directory, listener)
    remember(directory)
    other = FakeEnrollment()
    try:
        redeem(directory, other)
    finally:
        other.server.stop(None).wait()
    assert remembered(directory) == b""


def remember(directory: Path) -> None:
    """Record a reply and a state, as the agent does."""
    database = AgentDatabase(directory / "agent.sqlite")
    with database.transaction() as rows:
        rows.execute("INSERT INTO runs VALUES ('7', ?, 1)", (b"state",))
    database.close()


def remembered(directory: Path) -> bytes:
    """Return what is kept of run 7."""
    database = AgentDatabase(directory / "agent.sqlite")
    try:
        return AgentState(database, directory).state_of(7)
    finally:
        database.close()


# ---------------------------------------------------------------- commands


def invoke(*arguments: str, stdin: str = "") -> tuple[int, str, MeadowError | None]:
    """Run `meadow client ...` and return its exit code, what it prints, and its error."""
    from meadow.cli.client import app as commands

    result = CliRunner().invoke(commands, arguments, input=stdin)
    error = result.exception
    return result.exit_code, result.stdout, error if isinstance(error, MeadowError) else None


def test_command_enroll_reads_the_token(
    tmp_path: Path, listener: FakeEnrollment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token need not be on the command line: it comes from stdin or the environment."""
    base = ["enroll", "--server", listener.address, "--format", "json"]
    base += ["--ca-fingerprint", listener.authority.fingerprint]
    code, out, _ = invoke(*base, "--dir", str(tmp_path / "a"), "--token", "-", stdin="good\n")
    assert code == 0
    assert json.loads(out)["client"] == "site-1"
    listener.token = "other"
    monkeypatch.setenv("MEADOW_TOKEN", "other")
    code, out, _ = invoke(*base, "--dir", str(tmp_path / "b"))
    assert (code, json.loads(out)["node_id"]) == (0, 4)


def test_command_without_a_token(tmp_path: Path, listener: FakeEnrollment) -> None:
    """No token anywhere is an error of the call that says where it could be."""
    base = ["enroll", "--server", listener.address, "--ca-fingerprint", "0" * 64]
    *_, error = invoke(*base, "--dir", str(tmp_path / "a"))
    assert isinstance(error, ConfigError)
    assert "MEADOW_TOKEN" in str(error)


def test_commands_before_enrolment(tmp_path: Path) -> None:
    """Every command says what to do first."""
    for command in ("start", "status"):
        *_, error = invoke(command, "--dir", str(tmp_path))
        assert isinstance(error, ConfigError)
        assert "meadow client enroll" in str(error)
    code, out, _ = invoke("doctor", "--dir", str(tmp_path))
    assert code == 1
    assert "meadow client enroll" in out


def test_doctor_names_every_problem(tmp_path: Path, listener: FakeEnrollment, app: Path) -> None:
    """With the server away and one app broken, the rest is still looked at."""
    directory = tmp_path / "client"
    fingerprint = listener.authority.fingerprint
    enroll(directory, server=listener.address, token="good", ca_fingerprint=fingerprint, apps=[app])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pyproject.toml").write_text(PYPROJECT)
    file = directory / "client.toml"
    text = file.read_text().replace("[apps]", f'[apps]\nbroken = "{tmp_path / "broken"}"')
    file.write_text(text)
    code, out, _ = invoke("doctor", "--dir", str(directory), "--format", "json")
    found = {line["subject"]: line for line in map(json.loads, out.splitlines())}
    assert code == 1
    assert {subject: line["ok"] for subject, line in found.items()} == {
        "certificate": True,
        "server": False,
        "disk": found["disk"]["ok"],
        "windows": True,
        "secure sums": True,
        "app counting": True,
        "app broken": False,
    }
    assert "importing 'counting' failed" in found["app broken"]["finding"]
