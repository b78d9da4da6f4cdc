"""Enrolment: a one-time token and the authority's fingerprint become an identity on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc

from ...errors import ConfigError, MeadowError
from ...transport.address import Address
from ...transport.authority import SKEW
from ...transport.durable import write_file
from ...transport.fleet_pb2 import Certificate, EnrollRequest
from ...transport.fleet_pb2_grpc import EnrollmentStub
from ...transport.identity import match_fingerprint
from ...transport.proxy import proxy_options
from ...transport.tls import channel_credentials, fetch_ca
from ..agent.lock import hold_lock
from ..agent.rpc_errors import rpc_errors
from ..owner.database import AgentDatabase
from ..owner.identity_folder import ClientIdentity, IdentityFolder

__all__ = ["enroll", "skew_when_enrolled"]

ANSWER_WAIT_S = 20.0

_TEMPLATE = """\
# This file belongs to you, the owner of the data. Nothing that a server sends changes it; the agent
# reads it again after each change.

[apps]
# The apps that may run here: a name and its folder. The server names an app by the hash of its
# content, so a changed app does not run before you install it.
{apps}

[data]
# What the app's client_data finds in Site.config, for instance:
# path = "/data/images"
# This site's number among the sites; the server assigns them by default:
# index = 0
# count = 10

[device]
# device = "auto"            # "auto", "cpu", or as torch names it: "cuda:0", "mps"
# gpus = "all"               # instead of device: "all", a number, a list of them, "cpu"
# parallel = "auto"          # spread a round over them: "ddp", "fsdp", "tensor" or "auto"
# threads = 1
# memory_mb_max = 8000       # training is stopped beyond that
# kept_warm_s = 600          # the training process goes after so long without work

[policy]
# allowed_apps = ["sha256:..."]         # `meadow client doctor` prints what is installed
# min_cohort = 3                        # no round with fewer clients
# rounds_per_day = 100                  # of training, counted by UTC day
# hours = "20:00-06:00"                 # local time; `meadow client pause` takes the site out now
# load_max = 0.75                       # not while the machine is busier, a core; training counts
# unmetered_only = true                 # not on a network that is paid for by the byte
# bandwidth_bytes_per_s_max = 1_000_000 # of transfers, both ways together
# require_secure_aggregation = true      # nothing but sums leaves this site
# known_peers = ["ed25519:..."]         # with nobody else; `meadow client doctor` prints one's own
# require_differential_privacy = true
# epsilon_max = 4.0                     # over all runs; `meadow client privacy` says what is spent
# record_epsilon_max = 4.0              # likewise, of a single example
"""


def enroll(
    directory: Path, *, server: str, token: str, ca_fingerprint: str, apps: Sequence[Path] = ()
) -> ClientIdentity:
    """Redeem a token, and return the client's new identity.

    An existing identity is replaced once the new one is complete. The client state of earlier runs
    is deleted if the new server is another one.

    Raises:
        ConfigError: the address or an app's folder is wrong.
        UnreachableError: no server answers there.
        IdentityError: the fingerprint is not the server's, or the token is not valid.
        StoreError: an agent is running on the folder, or it cannot be written.
    """
    address = Address.parse(server, what="--server, the enrolment listener,")
    installed = _installed(apps)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with hold_lock(directory):
        ca_pem = fetch_ca(address.host, address.port, ca_fingerprint)
        staged = IdentityFolder(directory, "identity.new")
        shutil.rmtree(staged.folder, ignore_errors=True)
        certificate = _redeem(str(address), ca_pem, token, staged.request())
        match_fingerprint(certificate.ca_pem, ca_fingerprint)
        staged.store(certificate)
        present = IdentityFolder(directory)
        if present.exists and not _same_server(present, certificate):
            _forget_runs(directory)
        identity = staged.replace(present)
        if not (directory / "client.toml").exists():
            lines = [f"{json.dumps(name)} = {json.dumps(path)}" for name, path in installed.items()]
            text = _TEMPLATE.format(apps="\n".join(lines) or '# my-app = "/path/to/my-app"')
            write_file(directory / "client.toml", text.encode())
    return identity


def skew_when_enrolled(identity: ClientIdentity, *, now_s: float) -> float:
    """Return how far this machine's clock is ahead of the server's, in seconds, by the date of the
    certificate that the server has just issued."""
    issued = identity.certificate.not_before + SKEW
    return now_s - issued.timestamp()


def _installed(apps: Sequence[Path]) -> Mapping[str, str]:
    """Return name -> folder; the server uses this name for the app."""
    from ...apps.folder import App

    found: dict[str, str] = {}
    for path in apps:
        app = App.load(path, environ={})
        if app.name in found:
            raise ConfigError(f"two of the apps are called {app.name!r}")
        found[app.name] = str(app.folder)
    return found


def _redeem(address: str, ca_pem: bytes, token: str, request_pem: bytes) -> Certificate:
    credentials, options = channel_credentials(ca_pem), proxy_options(address)
    with grpc.secure_channel(address, credentials, options) as channel:
        request = EnrollRequest(token=token.strip(), csr_pem=request_pem)
        with rpc_errors(address):
            answer: Certificate = EnrollmentStub(channel).Enroll(request, timeout=ANSWER_WAIT_S)
            return answer


def _same_server(present: IdentityFolder, certificate: Certificate) -> bool:
    try:
        return present.load().ca_pem == certificate.ca_pem
    except MeadowError:
        return False


def _forget_runs(directory: Path) -> None:
    """Delete the client state of another server's runs; the owner's ledger stays."""
    database = AgentDatabase(directory / "agent.sqlite")
    with database.transaction() as rows:
        rows.execute("DELETE FROM runs")
        rows.execute("DELETE FROM replies")
    database.close()
    for name in ("runs", "blobs"):
        shutil.rmtree(directory / name, ignore_errors=True)
