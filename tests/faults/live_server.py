"""A real daemon in a process of its own, and how its operator and its attackers reach it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from meadow.config.server_config import server_config_to_toml
from meadow.server.daemon.server_dir import ServerFolder
from meadow.transport import fleet_pb2 as pb
from meadow.transport.fleet_pb2_grpc import AdminStub, EnrollmentStub, FleetStub
from meadow.transport.keys import KeyPair, create_request
from meadow.transport.protocol import PROTOCOL_VERSION
from meadow.transport.tls import channel_credentials

LEASE_S = 2.0
BLOB_BYTES_MAX = 1 << 30
CALL_S = 20.0
"""How long a test waits for an answer that always comes."""


class LiveServer:
    """A daemon on ports of its own; `admin` speaks as its operator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = ServerFolder.create(folder, host="localhost", now=datetime.now(UTC))
        config = replace(
            self.home.config, fleet_port=0, enroll_port=0, lease_s=LEASE_S,
            blob_bytes_max=BLOB_BYTES_MAX,
        )  # fmt: skip
        (folder / "server.toml").write_text(server_config_to_toml(config))
        self.log = folder / "daemon.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "meadow", "server", "start", "--dir", str(folder),
                 "--format", "json"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self._process.stdout is not None
        listening = json.loads(self._process.stdout.readline())
        self.fleet, self.enroll_address = listening["fleet"], listening["enroll"]
        self.ca_pem = self.home.authority.certificate_pem
        identity = self.home.admin()
        self.admin_pair = KeyPair(
            key_pem=identity.key_pem, certificate_pem=identity.certificate_pem
        )
        self._admin_channel = self.channel(self.admin_pair)
        self.admin = AdminStub(self._admin_channel)

    def close(self) -> None:
        """End the daemon, whatever it is doing."""
        self._admin_channel.close()
        self._process.kill()
        self._process.wait()

    @property
    def alive(self) -> bool:
        """Whether the daemon still runs."""
        return self._process.poll() is None

    def resident_bytes(self) -> int:
        """Return how much memory the daemon holds."""
        return self._status("VmRSS")

    def peak_bytes(self) -> int:
        """Return the most memory that the daemon has held."""
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith(name))
        return int(line.split()[1]) << 10

    def deleted_files(self) -> list[str]:
        """Return the files of the spool that the daemon has open though they were deleted."""
        links = []
        for fd in Path(f"/proc/{self._process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed meanwhile
                links.append(os.readlink(fd))
        return [link for link in links if "/spool/" in link and link.endswith("(deleted)")]

    # ------------------------------------------------------------------ ways in

    def channel(self, pair: KeyPair | None, *, ca_pem: bytes | None = None) -> grpc.Channel:
        """Open a channel to the fleet listener that shows `pair`."""
        credentials = channel_credentials(ca_pem or self.ca_pem, pair)
        return grpc.secure_channel(self.fleet, credentials, OPTIONS)

    def enrollment(self) -> grpc.Channel:
        """Open a channel to the enrolment listener."""
        return grpc.secure_channel(self.enroll_address, channel_credentials(self.ca_pem), OPTIONS)

    def token(self, name: str, *, hours: float = 1.0, now_s: float | None = None) -> str:
        """Invite a client; returns its token."""
        return self.home.invite(name, hours=hours, now_s=now_s or time.time())[0]

    def enroll(self, name: str, folder: Path) -> KeyPair:
        """Enrol a client as an agent does; returns its key and certificate."""
        folder.mkdir(parents=True, exist_ok=True)
        key = folder / f"{name}.key.pem"
        key.unlink(missing_ok=True)
        request = pb.EnrollRequest(token=self.token(name), csr_pem=create_request("new", key))
        with self.enrollment() as channel:
            answer = EnrollmentStub(channel).Enroll(request, timeout=CALL_S)
        return KeyPair(key_pem=key.read_bytes(), certificate_pem=answer.certificate_pem)

    # ------------------------------------------------------------------ what it recorded

    def wait_for_site(self, name: str, state: str) -> None:
        """Wait until the server says that a client is in a state."""

        def is_so() -> bool:
            sites = self.admin.Sites(pb.Empty(), timeout=CALL_S).sites
            return any(site.name == name and site.state == state for site in sites)

        wait_until(is_so)

    def events(self, run_id: int = 0, kind: str | None = None) -> list[dict[str, Any]]:
        """Return what the journal has recorded, the server's own events by default."""
        uri = f"file:{self.folder}/journal.sqlite?mode=ro"
        journal = sqlite3.connect(uri, uri=True, timeout=CALL_S)
        try:
            rows = journal.execute(
                "SELECT kind, json FROM events WHERE run_id = ? ORDER BY id", (run_id,)
            ).fetchall()
        finally:
            journal.close()
        return [json.loads(text) for each, text in rows if kind in (None, each)]

    def serves(self, pair: KeyPair) -> None:
        """Make sure that an honest client is still served."""
        assert self.alive
        name = name_of(pair)
        with self.channel(pair) as channel:
            hello = pb.AgentMessage(
                hello=pb.Hello(protocol=PROTOCOL_VERSION, client=name, version="1")
            )
            call = FleetStub(channel).Connect(iter([hello]), timeout=CALL_S)
            assert next(call).HasField("welcome")
            call.cancel()


OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),
]


def wait_until(condition: Callable[[], object], patience_s: float = CALL_S) -> None:
    """Wait for something that the daemon does and tells nobody."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.005)


def name_of(pair: KeyPair) -> str:
    """Return the name in a pair's certificate."""
    from meadow.transport.identity import identity_of

    return identity_of(pair.certificate_pem).name


@contextmanager
def refused(*codes: grpc.StatusCode, match: str = "") -> Iterator[None]:
    """Pass if the call in the block is refused with one of these codes, and says why in a line."""
    try:
        yield
    except grpc.RpcError as error:
        said = error.details() or ""
        assert error.code() in codes, (error.code(), said)
        assert match in said, said
        assert said and "\n" not in said and "Traceback" not in said, said
    else:
        raise AssertionError(f"the call was not refused with {codes}")
