"""Keys and tokens: readable for their owner only, and in no log, message or journal."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from meadow.client.tools.enroll import enroll
from meadow.errors import IdentityError
from meadow.transport import fleet_pb2 as pb
from meadow.transport.fleet_pb2_grpc import EnrollmentStub
from meadow.transport.keys import create_request

from .live_server import CALL_S, LiveServer, refused


def mode_of(path: Path) -> int:
    """Return a file's permissions."""
    return stat.S_IMODE(path.stat().st_mode)


def test_server_files(server: LiveServer) -> None:
    """Nobody but its owner reads anything in a server's folder, the keys least of all."""
    assert mode_of(server.folder) == 0o700
    for name in ("ca/key.pem", "admin.json"):
        assert mode_of(server.folder / name) == 0o600
    for path in server.folder.rglob("*"):
        with suppress(FileNotFoundError):  # the daemon has replaced it meanwhile
            assert not path.stat().st_mode & stat.S_IWOTH, path
            if path.is_file() and b"PRIVATE KEY" in path.read_bytes():
                assert mode_of(path) == 0o600, path


def test_client_files(server: LiveServer, tmp_path: Path) -> None:
    """Nobody but its owner reads a client's folder, with its key and its updates."""
    directory = tmp_path / "client"
    before = os.umask(0)
    try:
        join(server, directory, server.token("private"))
    finally:
        os.umask(before)
    assert mode_of(directory) == 0o700
    assert mode_of(directory / "identity") == 0o700
    assert mode_of(directory / "identity" / "key.pem") == 0o600


def join(server: LiveServer, directory: Path, token: str) -> None:
    """Enrol as `meadow client enroll` does."""
    fingerprint = server.home.authority.fingerprint
    enroll(directory, server=server.enroll_address, token=token, ca_fingerprint=fingerprint)


def test_wrong_fingerprint(server: LiveServer, tmp_path: Path) -> None:
    """A client that expects another authority sends no token, and keeps nothing."""
    token = server.token("careful")
    with pytest.raises(IdentityError, match="fingerprint"):
        enroll(tmp_path / "c", server=server.enroll_address, token=token, ca_fingerprint="0" * 64)
    assert not (tmp_path / "c" / "identity").exists()
    join(server, tmp_path / "c", token)  # it was not used up


def test_tokens_leave_no_trace(server: LiveServer, tmp_path: Path) -> None:
    """A token is in no file and no error, neither as it was given out nor as it is kept."""
    tokens = [server.token("traceless") for _ in range(3)]
    request = create_request("new", tmp_path / "key.pem")
    with server.enrollment() as channel:
        stub = EnrollmentStub(channel)
        stub.Enroll(pb.EnrollRequest(token=tokens[2], csr_pem=request), timeout=CALL_S)
        for token in (tokens[2], tokens[0], tokens[1][:-1]):
            with refused(grpc.StatusCode.PERMISSION_DENIED):
                stub.Enroll(pb.EnrollRequest(token=token, csr_pem=request), timeout=CALL_S)
    found = b""
    for path in server.folder.rglob("*"):
        with suppress(FileNotFoundError):  # the daemon has replaced it meanwhile
            found += path.read_bytes() if path.is_file() else b""
    for token in tokens:
        assert token.encode() not in found
        assert token.replace("-", "").encode() not in found


def test_keys_are_not_printed(server: LiveServer) -> None:
    """No object that holds a key shows it when it is printed."""
    holders = (server.home.admin(), server.home.authority, server.admin_pair)
    for holder in holders:
        assert b"PRIVATE KEY" in holder.key_pem
        assert "PRIVATE KEY" not in repr(holder) + str(holder)


def test_daemon_says_little(server: LiveServer, tmp_path: Path) -> None:
    """Attacks leave no secret in what the daemon prints."""
    with server.channel(server.enroll("talker", tmp_path)) as channel:
        for method, said in (("Connect", b"\xff"), ("Upload", b"\xff" * 10)):
            call = channel.stream_stream(f"/meadow.v1.Fleet/{method}")
            with pytest.raises(grpc.RpcError):
                list(call(iter([said]), timeout=CALL_S))
    printed = server.log.read_text()
    assert "PRIVATE KEY" not in printed and "CERTIFICATE" not in printed
