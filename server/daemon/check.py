"""`meadow server check`: finds damage in a server's folder, and repairs a damaged journal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from ...apps.folder import content_hash
from ...errors import DamageError, MeadowError, StoreError
from ...run.checkpoints import Checkpoints
from ...run.privacy_ledger import RunLedger
from ...transport.database import Salvage, salvage
from ...transport.durable import sync_folder
from ...transport.identity import verify_issued
from ..journal.database import JOURNAL_LAYOUT
from ..journal.journal import Journal
from ..journal.run_table import RunRow
from .retention import pruned_at
from .server_dir import AdminIdentity, ServerFolder

__all__ = ["DAMAGED_NAME", "FolderCheck", "audit_check", "check_server_folder", "repair_journal"]

DAMAGED_NAME = "journal.damaged.sqlite"
SAVED = ("sites", "site_tags", "tokens", "runs", "run_sites")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderCheck:
    """The result of one check."""

    subject: str
    ok: bool
    text: str


def check_server_folder(server_folder: ServerFolder) -> Iterator[FolderCheck]:
    """Check everything in a server's folder that has a checksum; change nothing.

    Raises:
        StoreError: the daemon is running in this folder.
    """
    unlock = server_folder.lock()
    try:
        yield _identity(server_folder)
        if (server_folder.folder / "audit").is_dir():
            yield audit_check(server_folder)
        yield _journal(server_folder, _problems(server_folder.folder / "journal.sqlite"))
        runs = {str(row["id"]): RunRow(**row) for row in _salvaged(server_folder)["runs"].rows}
        folders = (path for path in (server_folder.folder / "runs").iterdir() if path.is_dir())
        for folder in sorted(folders, key=lambda path: (len(path.name), path.name)):
            yield _run(folder, runs.get(folder.name))
    finally:
        unlock()


def _identity(server_folder: ServerFolder) -> FolderCheck:
    try:
        ca_pem = server_folder.authority.certificate_pem
        admin = AdminIdentity.read(server_folder.folder / "admin.json")
        serial = verify_issued(admin.certificate_pem, ca_pem).serial
        if serial != server_folder.admin_serial():
            raise StoreError("admin.json was replaced; run `meadow server renew-admin`")
        roles = len(list(server_folder.roles.entries()))
    except MeadowError as error:
        return FolderCheck(subject="identity", ok=False, text=str(error))
    also = f", and {roles} more with a role" if roles else ""
    text = f"the authority and admin.json can be read{also}"
    return FolderCheck(subject="identity", ok=True, text=text)


def audit_check(server_folder: ServerFolder) -> FolderCheck:
    """Check every line of the audit log, and the chain between them."""
    found = server_folder.audit_log().verify()
    whole = f"lines {found.first} to {found.head.n} are whole" if found.head else "no line yet"
    return FolderCheck(
        subject="audit", ok=not found.problem, text=found.problem or found.note or whole
    )


def _journal(server_folder: ServerFolder, problems: list[str]) -> FolderCheck:
    if not problems:
        return FolderCheck(subject="journal", ok=True, text="every row is intact")
    saved = ", ".join(
        f"{len(found.rows)} of {len(found.rows) + len(found.lost)} {table}"
        for table, found in _salvaged(server_folder).items()
    )
    text = f"{'; '.join(problems[:5])}. --repair makes a new journal of the intact rows: {saved}"
    return FolderCheck(subject="journal", ok=False, text=text)


def _run(folder: Path, row: RunRow | None) -> FolderCheck:
    """Check a run's app, checkpoints and ledger."""
    wrong, well = [], []
    if row is not None and row.sha256 and row.status in ("queued", "running"):
        with suppress(MeadowError):
            if content_hash(folder / "app") != row.sha256:
                wrong.append("its app is not the one that was submitted")
    if at := pruned_at(folder):
        well.append(f"pruned at {at}")
    elif (folder / "checkpoints").is_dir():
        checkpoints = Checkpoints(folder / "checkpoints")
        damaged = checkpoints.problems()
        wrong += [f"{name}: {reason}" for name, reason in damaged.items()]
        intact = [n for n in checkpoints.rounds() if f"round-{n:06d}.json" not in damaged]
        rounds = ", ".join(str(number) for number in intact)
        well.append(f"checkpoints of rounds {rounds}" if intact else "no checkpoint is intact")
    if (folder / "privacy.sqlite").exists():
        try:
            RunLedger(folder / "privacy.sqlite").close()
        except StoreError as error:
            wrong.append(str(error))
    if row is None:
        well.append("the journal does not know this run")
    return FolderCheck(
        subject=f"run {folder.name}",
        ok=not wrong,
        text="; ".join([*wrong, *well]) or "nothing to check",
    )


def repair_journal(server_folder: ServerFolder) -> dict[str, Salvage]:
    """Make a new journal of the intact rows of a damaged one, which stays beside it.

    Steps are not copied, as one may have lost clients: rounds under way are repeated. A client
    whose row is lost has to enrol again.

    Raises:
        StoreError: the daemon is running, the journal is intact, or the damaged journal of an
            earlier repair is still in the folder.
    """
    path, damaged = server_folder.folder / "journal.sqlite", server_folder.folder / DAMAGED_NAME
    if damaged.exists():
        raise StoreError(f"{damaged} exists from an earlier repair; move it away first")
    unlock = server_folder.lock()
    try:
        if not _problems(path):
            raise StoreError(f"{path} is not damaged; nothing was changed")
        with server_folder.audited("server check --repair"):
            return _repaired(server_folder, path, damaged)
    finally:
        unlock()


def _repaired(server_folder: ServerFolder, path: Path, damaged: Path) -> dict[str, Salvage]:
    found, new = _salvaged(server_folder), server_folder.folder / "journal.new.sqlite"
    for file in _files(new):
        file.unlink(missing_ok=True)
    folders = [each.name for each in (server_folder.folder / "runs").iterdir()]
    numbers = [int(name) for name in folders if name.isdecimal()]
    with closing(Journal(new)) as journal:
        for table, saved in found.items():
            journal.take_over(table, saved, numbers=numbers if table == "runs" else ())
    for old, aside in zip(_files(path), _files(damaged), strict=True):
        if old.exists():
            os.rename(old, aside)
    os.rename(new, path)
    sync_folder(server_folder.folder)
    return found


def _problems(path: Path) -> list[str]:
    try:
        with closing(Journal(path)) as journal:
            return journal.problems()
    except DamageError as error:
        return [str(error)]


def _salvaged(server_folder: ServerFolder) -> dict[str, Salvage]:
    path = server_folder.folder / "journal.sqlite"
    return {table: salvage(path, JOURNAL_LAYOUT, table) for table in SAVED}


def _files(path: Path) -> list[Path]:
    """Return a database's file, and SQLite's files beside it."""
    return [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
