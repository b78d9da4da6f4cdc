"""The status of a client, read from its folder without a server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...apps.folder import content_hash
from ...errors import MeadowError
from ..agent.lock import lock_holder
from ..agent.state import AgentState
from ..hosts.membership import Membership
from ..owner.budget import epsilon_spent, finite
from ..owner.database import AgentDatabase
from ..owner.example_budget import record_epsilon
from ..owner.gate import Gate, is_paused
from ..owner.identity_folder import IdentityFolder
from ..owner.ledger import Ledger
from ..owner.owner import Owner

__all__ = [
    "AppStatus",
    "ClientSpending",
    "ClientStatus",
    "Refusal",
    "RunSpending",
    "hosts_line",
    "spending_of",
    "status_of",
]

REFUSALS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AppStatus:
    """An app that the owner has installed."""

    name: str
    sha256: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An instruction that the owner's policy refused."""

    at_s: float
    app: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatus:
    """The status of a client."""

    name: str
    node_id: int
    server: str
    certificate_until_s: float
    apps: tuple[AppStatus, ...]
    last_instruction: str
    rounds_today: int
    rounds_per_day: int | None
    """The owner's bound of them."""
    refusals: tuple[Refusal, ...]
    process: int | None
    """The process id of the running agent."""
    paused: bool
    """Whether the owner has paused the site."""
    hosts: str
    """Which other machines train with this one; empty where none do."""
    closed: str
    """Why the site takes no part now, by a pause or a window of its policy; empty if it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpending:
    """The privacy cost of one run, for the client and for one of its examples; epsilon is None for
    rounds without such noise."""

    app: str
    run_id: str
    rounds: int
    epsilon: float | None
    record_epsilon: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpending:
    """The privacy cost of all runs on a client's data, and the owner's budget.

    `epsilon` is that of all runs together, which is less than the sum of theirs.
    """

    epsilon: float | None
    epsilon_max: float | None
    record_epsilon: float | None
    record_epsilon_max: float | None
    delta: float
    runs: tuple[RunSpending, ...]


def spending_of(directory: Path, owner: Owner | None = None) -> ClientSpending:
    """Read the privacy cost from a client's folder; `owner` as in `status_of`.

    Raises:
        ConfigError: client.toml is missing or wrong.
        StoreError: the database is damaged, or not the complete ledger of this client.
    """
    policy = (owner or Owner(directory, content_hash)).config().policy
    database = AgentDatabase(directory / "agent.sqlite")
    try:
        ledger = Ledger(database)
        ledger.require(IdentityFolder(directory).folder)
        spent = ledger.spent()
    finally:
        database.close()
    return ClientSpending(
        epsilon=finite(epsilon_spent(spent, policy.delta)),
        epsilon_max=policy.epsilon_max,
        record_epsilon=finite(
            record_epsilon([release for each in spent for release in each.releases], policy.delta)
        ),
        record_epsilon_max=policy.record_epsilon_max,
        delta=policy.delta,
        runs=tuple(
            RunSpending(
                app=each.app,
                run_id=each.run_id,
                rounds=each.rounds,
                epsilon=finite(epsilon_spent([each], policy.delta)),
                record_epsilon=finite(record_epsilon(each.releases, policy.delta)),
            )
            for each in spent
        ),
    )


def status_of(directory: Path, *, now_s: float, owner: Owner | None = None) -> ClientStatus:
    """Read a client's folder; an `owner` of it that is handed in again knows the apps' hashes.

    Raises:
        ConfigError: it is not enrolled, or client.toml is wrong.
        IdentityError, StoreError: its files are damaged.
    """
    identity, owner = IdentityFolder(directory).load(), owner or Owner(directory, content_hash)
    apps = [
        AppStatus(
            name=name,
            sha256="" if isinstance(found, MeadowError) else found,
            problem=str(found) if isinstance(found, MeadowError) else "",
        )
        for name, found in owner.apps().items()
    ]
    policy = owner.config().policy
    database = AgentDatabase(directory / "agent.sqlite")
    try:
        ledger = Ledger(database)
        last = AgentState(database, directory).last()
        return ClientStatus(
            name=identity.name,
            node_id=identity.node_id,
            server=", ".join(owner.config().server.tried(identity.fleet_address)),
            certificate_until_s=identity.certificate.not_after.timestamp(),
            apps=tuple(apps),
            last_instruction=last.instruction_id if last else "",
            rounds_today=ledger.rounds_today(now_s=now_s),
            rounds_per_day=policy.rounds_per_day,
            refusals=tuple(
                Refusal(at_s=at_s, app=app, reason=reason)
                for at_s, app, reason in ledger.refusals(REFUSALS_SHOWN)
            ),
            process=lock_holder(directory),
            paused=is_paused(directory),
            hosts=hosts_line(directory, owner.config().device.hosts),
            closed=Gate(directory, lambda: policy, clock=lambda: now_s).closed_by(),
        )
    finally:
        database.close()


def hosts_line(directory: Path, count: int | None) -> str:
    """Say which machines have joined this one, in a line."""
    if count is None:
        return ""
    membership = Membership(directory)
    status = membership.status()
    if not _runs(status.get("process")):
        invited = ", ".join(membership.names) or "none"
        return f"{count} wanted; no training process, so they cannot join now (invited: {invited})"
    joined = [
        f"{host['name']} ({host['ranks']} ranks, {'trains' if host['trains'] else 'waits'})"
        for host in status["hosts"]
    ]
    refused = status["refusals"]
    last = f"; {refused} connections refused, last {status['last_refusal']}" if refused else ""
    return f"{1 + len(joined)} of {count}: {', '.join(['this one', *joined])}{last}"


def _runs(process: object) -> bool:
    if not isinstance(process, int):
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
