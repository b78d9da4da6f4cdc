"""Checks everything that a client needs, and states a remedy for each fault."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ... import __version__
from ...apps.folder import content_hash
from ...errors import ConfigError, IdentityError, MeadowError
from ...machine.temperature import hottest
from ...transport.fleet_pb2 import Blob
from ...transport.reach import why_not_reached
from ..agent.clock import clock_fault
from ..agent.connection import Connection
from ..agent.lock import lock_holder
from ..agent.rpc_errors import GoneError
from ..agent.warm_process import WarmProcess, training_environment
from ..hosts.membership import Membership
from ..owner.gate import Gate
from ..owner.identity_folder import ClientIdentity, IdentityFolder
from ..owner.owner import Owner
from ..owner.secure_owner import peer_of, pins_of, signing_key
from .status import hosts_line

__all__ = ["CheckResult", "examine", "tried_out", "windows_of"]

DISK_BYTES_MIN = 1_000_000_000


async def examine(directory: Path) -> AsyncIterator[CheckResult]:
    """Yield the result of one check after another."""
    try:
        identity = IdentityFolder(directory).load()
    except MeadowError as error:
        yield CheckResult(subject="certificate", ok=False, text=str(error))
        return
    yield _certificate(identity)
    for address in _addresses(directory, identity):
        for finding in await _server(directory, identity, address):
            yield finding
    yield _disk(directory)
    yield windows_of(directory)
    yield _secure_key(directory)
    for finding in _hosts(directory):
        yield finding
    async for finding in _apps(directory, identity):
        yield finding


def _certificate(identity: ClientIdentity) -> CheckResult:
    seen, now = identity.certificate, datetime.now(UTC)
    days = (seen.not_after - now).total_seconds() / 86400
    try:
        seen.check(now, role="client")
    except IdentityError as error:
        text = f"{error}; ask the server's operator for a token and enrol again"
        return CheckResult(subject="certificate", ok=False, text=text)
    text = f"of {identity.name}, node {identity.node_id}, valid for {days:.1f} days"
    return CheckResult(subject="certificate", ok=True, text=text)


def windows_of(directory: Path) -> CheckResult:
    """Say whether the site takes part now; it is a problem if its windows will not open, or not for long."""
    problem = ""
    try:
        config = Owner(directory, content_hash).config()
        policy = config.policy
        closed = Gate(directory, lambda: policy, clock=time.time).closed_by()
    except MeadowError as error:
        return CheckResult(subject="windows", ok=False, text=str(error))
    cores = os.cpu_count() or 1
    if policy.load_max is not None and policy.load_max <= config.device.threads / cores:
        problem = (
            f"; policy.load_max = {policy.load_max:g} is not above what training makes by itself, "
            f"{config.device.threads / cores:.2g} (device.threads on {cores} cores): longer rounds would "
            "close the window, so raise it"
        )
    if policy.temperature_max_c is not None and hottest() is None:
        problem += "; no temperature sensor can be read, so remove policy.temperature_max_c"
    text = f"it takes no part now: {closed}" if closed else "it takes part now"
    return CheckResult(subject="windows", ok=not problem, text=text + problem)


def _secure_key(directory: Path) -> CheckResult:
    """Show the key that other owners list for this client in secure sums."""
    try:
        peers = len(Owner(directory, content_hash).config().policy.known_peers)
        known = f"{peers} known peers" if peers else f"{len(pins_of(directory))} peers seen so far"
        text = f"{peer_of(signing_key(directory))}, for the known_peers of others; {known}"
    except MeadowError as error:
        return CheckResult(subject="secure sums", ok=False, text=str(error))
    return CheckResult(subject="secure sums", ok=True, text=text)


def _hosts(directory: Path) -> list[CheckResult]:
    """Say which other machines of the site are there, if any are wanted."""
    try:
        count = Owner(directory, content_hash).config().device.hosts
    except MeadowError:
        return []  # another finding says it
    if count is None:
        return []
    if Membership(directory).names:
        return [CheckResult(subject="hosts", ok=True, text=hosts_line(directory, count))]
    remedy = f"`meadow client rank --invite NAME --dir {directory}` for each other machine"
    text = f"device.hosts = {count}, and none was invited: {remedy}, or remove device.hosts"
    return [CheckResult(subject="hosts", ok=False, text=text)]


def _addresses(directory: Path, identity: ClientIdentity) -> tuple[str, ...]:
    """Return the addresses that the agent tries; a mistake in client.toml is another finding."""
    told = identity.fleet_address
    with suppress(ConfigError):
        return Owner(directory, content_hash).config().server.tried(told)
    return (told,)


async def _server(directory: Path, identity: ClientIdentity, address: str) -> list[CheckResult]:
    """Connect as the agent does, unless one is running: a second stream would end the agent's."""
    agent = lock_holder(directory)
    try:
        async with Connection(address, identity.credentials()) as connection:
            if agent is not None:
                return [await _probe(connection, directory, agent)]
            before_s = time.time()
            welcome = await connection.hello(identity.name, __version__)
            ours_s = (before_s + time.time()) / 2
    except MeadowError as error:
        text = f"{error}; ask the server's operator for a token and enrol again"
        if not isinstance(error, IdentityError):
            now = datetime.now(UTC)
            found = await asyncio.to_thread(why_not_reached, address, identity.ca_pem, now=now)
            remedy = "is the server running, and does the network let this machine reach it?"
            text = found or f"{error}; {remedy}"
        return [CheckResult(subject="server", ok=False, text=text)]
    server = CheckResult(subject="server", ok=True, text=f"{address} welcomes {identity.name}")
    return [server, _clock(ours_s - welcome.server_time_s)]


def _clock(skew_s: float) -> CheckResult:
    fault = clock_fault(skew_s)
    if fault is not None:
        return CheckResult(subject="clock", ok=False, text=fault)
    ahead = f"{abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} the server's"
    return CheckResult(subject="clock", ok=True, text=ahead)


async def _probe(connection: Connection, directory: Path, agent: int) -> CheckResult:
    """Request a blob that does not exist: the server answers so only to a client it accepts."""
    with suppress(GoneError):
        await connection.download(Blob(id="doctor", size_bytes=1), directory / "blobs")
    text = f"{connection.address} answers; the agent is running, process {agent}"
    return CheckResult(subject="server", ok=True, text=text)


def _disk(directory: Path) -> CheckResult:
    free = shutil.disk_usage(directory).free
    text = f"{free / 1e9:.1f} GB free"
    if free < DISK_BYTES_MIN:
        text += f", less than {DISK_BYTES_MIN / 1e9:.0f} GB; make room on the disk of {directory}"
    return CheckResult(subject="disk", ok=free >= DISK_BYTES_MIN, text=text)


async def _apps(directory: Path, identity: ClientIdentity) -> AsyncIterator[CheckResult]:
    owner = Owner(directory, content_hash)
    try:
        apps = owner.apps()
    except MeadowError as error:
        yield CheckResult(subject="client.toml", ok=False, text=str(error))
        return
    if not apps:
        text = f"none is installed; name one under [apps] in {directory / 'client.toml'}"
        yield CheckResult(subject="apps", ok=False, text=text)
    log = directory / "doctor.log"
    trainer = WarmProcess(owner, node_id=identity.node_id, log=log, alone=True)
    try:
        for app, found in apps.items():
            if isinstance(found, MeadowError):
                yield CheckResult(subject=f"app {app}", ok=False, text=str(found))
                continue
            finding, trains = await _app(trainer, app, found, log)
            yield finding
            if trains:
                await trainer.close()  # its memory would be missing in the measurement
                yield await tried_out(owner, app, log)
    finally:
        await trainer.close()


async def _app(trainer: WarmProcess, app: str, sha256: str, log: Path) -> tuple[CheckResult, bool]:
    """Return the result of an app's check, and whether a round of it can be measured."""
    subject, shown = f"app {app}", f"sha256:{sha256}"
    try:
        device, inspection = await trainer.inspect(app)
    except MeadowError as error:
        return CheckResult(subject=subject, ok=False, text=f"{shown}: {error}"), False
    if inspection.problem:
        text = f"{shown}: its data do not load: {inspection.problem}; the details are in {log}"
        return CheckResult(subject=subject, ok=False, text=text), False
    data = "it loads"
    if inspection.counted:
        data = f"{inspection.train_samples} samples to train, {inspection.test_samples} to test"
    text = f"{shown}, device {device}, {data}"
    return CheckResult(subject=subject, ok=True, text=text), inspection.counted


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check."""

    subject: str
    ok: bool
    text: str
    """The finding, with the remedy if it is a fault."""


WAIT_S = 180.0
MODULE = "meadow.client.tools.batch_probe"


async def tried_out(owner: Owner, app: str, log: Path) -> CheckResult:
    """Measure time and memory of a local round; a round that cannot be measured is not a fault."""
    subject = f"fit {app}"
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE, "--dir", str(owner.directory), "--app", app),
            env={**os.environ, **training_environment(owner.config().device)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
        )
    try:
        async with asyncio.timeout(WAIT_S):
            printed, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        text = (
            f"a few steps take longer than {WAIT_S:.0f} s; use a faster device or a smaller batch"
        )
        return CheckResult(subject=subject, ok=False, text=text)
    lines = printed.decode(errors="replace").splitlines()
    if process.returncode or not lines:
        text = f"its steps ended the process with status {process.returncode}; see {log}"
        return CheckResult(subject=subject, ok=False, text=text)
    found = json.loads(lines[-1])  # the app's output comes before
    if "problem" in found:
        return CheckResult(subject=subject, ok=False, text=found["problem"])
    if "untried" in found:
        return CheckResult(subject=subject, ok=True, text=f"not tried out: {found['untried']}")
    return CheckResult(subject=subject, ok=True, text=_sentence(found))


def _sentence(found: Mapping[str, Any]) -> str:
    return (
        f"a round takes about {found['round_s']:.1f} s ({found['examples_a_second']:.0f} examples "
        f"a second) and {found['memory_mb']} of {found['room_mb']} MB with {found['batch']} "
        f"examples at once; about {found['batch_max']} would fit, {found['batch_tried']} were tried"
    )
