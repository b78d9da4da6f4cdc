"""Looks at everything that a client needs, and says what to do about what is not well."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ...apps.folder import content_hash
from ...errors import IdentityError, MeadowError
from ...transport.fleet_pb2 import Blob
from ...transport.reach import why_not_reached
from ..agent.clock import clock_fault
from ..agent.connection import Connection
from ..agent.lock import lock_holder
from ..agent.rpc_errors import GoneError
from ..agent.version import VERSION
from ..agent.warm_process import WarmProcess
from ..owner.identity_folder import ClientIdentity, IdentityFolder
from ..owner.owner import Owner
from ..owner.secure_owner import peer_of, pins_of, signing_key
from .finding import Finding
from .trial import tried_out

__all__ = ["Finding", "examine"]

DISK_BYTES_MIN = 1_000_000_000


async def examine(directory: Path) -> AsyncIterator[Finding]:
    """Look at one thing after another."""
    try:
        identity = IdentityFolder(directory).load()
    except MeadowError as error:
        yield Finding(subject="certificate", ok=False, text=str(error))
        return
    yield _certificate(identity)
    for finding in await _server(directory, identity):
        yield finding
    yield _disk(directory)
    yield _secure_key(directory)
    async for finding in _apps(directory, identity):
        yield finding


def _certificate(identity: ClientIdentity) -> Finding:
    seen, now = identity.certificate, datetime.now(UTC)
    days = (seen.not_after - now).total_seconds() / 86400
    try:
        seen.check(now, role="client")
    except IdentityError as error:
        text = f"{error}; ask the server's operator for a token and enrol again"
        return Finding(subject="certificate", ok=False, text=text)
    text = f"of {identity.name}, node {identity.node_id}, valid for {days:.1f} days"
    return Finding(subject="certificate", ok=True, text=text)


def _secure_key(directory: Path) -> Finding:
    """Show the key by which other owners know this client in secure sums."""
    try:
        peers = len(Owner(directory, content_hash).config().policy.known_peers)
        known = f"{peers} known peers" if peers else f"{len(pins_of(directory))} peers seen so far"
        text = f"{peer_of(signing_key(directory))}, for the known_peers of others; {known}"
    except MeadowError as error:
        return Finding(subject="secure sums", ok=False, text=str(error))
    return Finding(subject="secure sums", ok=True, text=text)


async def _server(directory: Path, identity: ClientIdentity) -> list[Finding]:
    """Say hello, unless an agent does so already: a second stream would end the agent's."""
    address, agent = identity.fleet_address, lock_holder(directory)
    try:
        async with Connection(address, identity.credentials()) as connection:
            if agent is not None:
                return [await _probe(connection, directory, agent)]
            before_s = time.time()
            welcome = await connection.hello(identity.name, VERSION)
            ours_s = (before_s + time.time()) / 2
    except MeadowError as error:
        text = f"{error}; ask the server's operator for a token and enrol again"
        if not isinstance(error, IdentityError):
            now = datetime.now(UTC)
            found = await asyncio.to_thread(why_not_reached, address, identity.ca_pem, now=now)
            remedy = "is the server running, and does the network let this machine reach it?"
            text = found or f"{error}; {remedy}"
        return [Finding(subject="server", ok=False, text=text)]
    server = Finding(subject="server", ok=True, text=f"{address} welcomes {identity.name}")
    return [server, _clock(ours_s - welcome.server_time_s)]


def _clock(skew_s: float) -> Finding:
    fault = clock_fault(skew_s)
    if fault is not None:
        return Finding(subject="clock", ok=False, text=fault)
    ahead = f"{abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} the server's"
    return Finding(subject="clock", ok=True, text=ahead)


async def _probe(connection: Connection, directory: Path, agent: int) -> Finding:
    """Ask for a blob that does not exist: whoever is told so has been let in."""
    with suppress(GoneError):
        await connection.download(Blob(id="doctor", size_bytes=1), directory / "blobs")
    text = f"{connection.address} answers; the agent is running, process {agent}"
    return Finding(subject="server", ok=True, text=text)


def _disk(directory: Path) -> Finding:
    free = shutil.disk_usage(directory).free
    text = f"{free / 1e9:.1f} GB free"
    if free < DISK_BYTES_MIN:
        text += f", less than {DISK_BYTES_MIN / 1e9:.0f} GB; make room on the disk of {directory}"
    return Finding(subject="disk", ok=free >= DISK_BYTES_MIN, text=text)


async def _apps(directory: Path, identity: ClientIdentity) -> AsyncIterator[Finding]:
    owner = Owner(directory, content_hash)
    try:
        apps = owner.apps()
    except MeadowError as error:
        yield Finding(subject="client.toml", ok=False, text=str(error))
        return
    if not apps:
        text = f"none is installed; name one under [apps] in {directory / 'client.toml'}"
        yield Finding(subject="apps", ok=False, text=text)
    log = directory / "doctor.log"
    trainer = WarmProcess(owner, node_id=identity.node_id, log=log)
    try:
        for app, found in apps.items():
            if isinstance(found, MeadowError):
                yield Finding(subject=f"app {app}", ok=False, text=str(found))
                continue
            finding, trains = await _app(trainer, app, found, log)
            yield finding
            if trains:
                await trainer.close()  # what it holds would be missing in the trial
                yield await tried_out(owner, app, log)
    finally:
        await trainer.close()


async def _app(trainer: WarmProcess, app: str, sha256: str, log: Path) -> tuple[Finding, bool]:
    """Return what there is to say of an app, and whether a round of it can be tried out."""
    subject, shown = f"app {app}", f"sha256:{sha256}"
    try:
        device, inspection = await trainer.inspect(app)
    except MeadowError as error:
        return Finding(subject=subject, ok=False, text=f"{shown}: {error}"), False
    if inspection.problem:
        text = f"{shown}: its data do not load: {inspection.problem}; the whole story is in {log}"
        return Finding(subject=subject, ok=False, text=text), False
    data = "it loads"
    if inspection.counted:
        data = f"{inspection.train_samples} samples to train, {inspection.test_samples} to test"
    text = f"{shown}, device {device}, {data}"
    return Finding(subject=subject, ok=True, text=text), inspection.counted
