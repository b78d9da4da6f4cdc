"""`meadow server doctor`: looks for what is wrong with a server, or will be, and says the remedy.

It changes nothing, and works beside a daemon as well as without one. What it says of the files of ended
runs is little: `meadow server check` reads those, too, while the daemon is stopped.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ...config.server_config import NotifyConfig, StorageConfig
from ...errors import DamageError, MeadowError, StoreError
from ...reports.sentences import amount, moment
from ...run.population_ledger import POPULATION_LAYOUT
from ...run.privacy_ledger import RELEASES_LAYOUT
from ...transport import fleet_pb2 as pb
from ...transport.address import Address
from ...transport.blobs import blob_path, blobs_of, require_intact
from ...transport.database import Database, TableLayout
from ...transport.identity import identity_of, read_certificate
from ...transport.reach import look_at, why_not_reached
from ..daemon.check import DAMAGED_NAME, FolderCheck, audit_check
from ..daemon.condition_watch import AUTHORITY, QUOTA_PART, is_ending
from ..daemon.retention import Retention, folder_bytes
from ..daemon.server_dir import SERVER_DAYS, AdminIdentity, ServerFolder
from ..daemon.spool import Spool
from ..journal.database import JOURNAL_LAYOUT
from ..journal.journal import Journal
from ..journal.run_table import OVER
from ..notify.receivers import receivers_of

__all__ = ["examine_server"]

SECRETS: Final = ("ca/key.pem", "admin.json")
REACH_S: Final = 10.0
CLOCK_S_MAX: Final = 60.0
"""What is written by this machine's clock may be so far in the future."""
BACKUP_DAYS_MAX: Final = 8.0
BACKUP_LINES_MAX: Final = 20_000
"""Lines of the audit log that are searched for the last backup."""
NAMED_MAX: Final = 5
DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
UNITS: Final = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")


def examine_server(
    folder: Path, *, clock: Callable[[], float] = time.time
) -> Iterator[FolderCheck]:
    """Yield the result of one check after another."""
    try:
        home = ServerFolder(folder)
    except MeadowError as error:
        yield _bad("server.toml", str(error))
        return
    yield _good("server.toml", f"it is valid; the server is {home.config.hosts[0]}")
    now_s, runs_here = clock(), _daemon_runs(home)
    checks: dict[str, Callable[[], FolderCheck | Iterable[FolderCheck]]] = {
        "secrets": lambda: _modes(home),
        "owners": lambda: _owners(home),
        "certificates": lambda: _certificates(home, now_s),
        "clock": lambda: _clock(home, now_s),
        "disk": lambda: _disk(home),
        "quota": lambda: _quota(home),
        "daemon": lambda: _daemon(home, now_s) if runs_here else _ports(home),
        "databases": lambda: _databases(home),
        "spool": lambda: _transit(home, runs_here),
        "prune": lambda: _leftovers(home, runs_here),
        "audit": lambda: audit_check(home),
        "backup": lambda: _backup(home, now_s),
        "notify": lambda: _receivers(home, clock),
        "systemd": lambda: _unit(home),
    }
    for subject, check in checks.items():
        try:
            found = check()
            yield from (found,) if isinstance(found, FolderCheck) else found
        except (MeadowError, OSError, sqlite3.Error) as error:
            yield _bad(subject, f"it cannot be looked at: {error}")


@contextmanager
def _journal(home: ServerFolder) -> Iterator[Journal]:
    """Open the journal, unless that would change it."""
    path = home.folder / "journal.sqlite"
    if (version := _version(path)) != len(JOURNAL_LAYOUT.versions):
        raise StoreError(
            f"{path} has layout {version}, of another version of Meadow: restart the daemon with this one"
        )
    with closing(Journal(path)) as journal:
        yield journal


def _version(path: Path) -> int:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as plain:
        return int(plain.execute("PRAGMA user_version").fetchone()[0])


def _good(subject: str, text: str) -> FolderCheck:
    return FolderCheck(subject=subject, ok=True, text=text)


def _bad(subject: str, text: str) -> FolderCheck:
    return FolderCheck(subject=subject, ok=False, text=text)


def _some(names: Iterable[object]) -> str:
    found = [str(each) for each in names]
    more = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    return f"{', '.join(found[:NAMED_MAX])}{more}"


# ------------------------------------------------------------------ files, and who may read them


def _modes(home: ServerFolder) -> FolderCheck:
    """Secrets are only their owner's; so is the folder, which has models."""
    notify = home.config.notify or NotifyConfig()
    names = [*SECRETS, *([notify.key_file] if notify.key_file else [])]
    paths = [home.folder / name for name in names]
    open_ = [p for p in paths if p.exists() and p.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]
    if open_:
        text = f"other users of this machine can read {_some(open_)}: `chmod 600 {open_[0]}`"
        return _bad("secrets", f"{text}, and renew what may have leaked")
    if home.folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        text = "other users of this machine can read this folder, which has models"
        return _bad("secrets", f"{text}: `chmod 700 {home.folder}`")
    return _good("secrets", "only their owner can read the keys and the folder")


def _owners(home: ServerFolder) -> FolderCheck:
    """The daemon's user owns everything that it has to write."""
    owner = home.folder.stat().st_uid
    parts = [home.folder, home.folder / "ca", home.folder / "audit", home.folder / "runs"]
    paths = [path for part in parts if part.is_dir() for path in part.iterdir()]
    others = [path for path in paths if path.lstat().st_uid != owner]
    if others:
        text = f"{_some(others)} belong to another user than the folder, and the daemon cannot write there"
        return _bad("owners", f"{text}: `chown -R --reference={home.folder} {home.folder}`")
    return _good("owners", "all files belong to the folder's owner")


# ------------------------------------------------------------------ certificates, and the clock


def _certificates(home: ServerFolder, now_s: float) -> FolderCheck:
    """Those of the folder, and of the sites, as far as they are known here."""
    ca = read_certificate(home.authority.certificate_pem)
    admin = identity_of(AdminIdentity.read(home.folder / "admin.json").certificate_pem)
    ends = [
        _End(AUTHORITY, ca.not_valid_after_utc.timestamp(), 3650.0, "make a new server"),
        _End("admin.json", admin.not_after.timestamp(), 3650.0, "`meadow server renew-admin`"),
    ]
    for role in home.roles.entries():
        remedy = f"`meadow server role revoke {role.name}`, then `role add`"
        ends.append(_End(f"role {role.name}", role.until_s, 365.0, remedy))
    with _journal(home) as journal:
        for site in journal.sites.all():
            if site.serial and site.revoked_at_s is None:
                remedy = (
                    f"it connects before, or is invited again: `meadow server invite {site.name}`"
                )
                days = float(home.config.certificate_days)
                ends.append(_End(site.name, site.certificate_until_s, days, remedy))
    near = [
        each
        for each in ends
        if is_ending(each.until_s, each.days, now_s=now_s, of_authority=each.name == AUTHORITY)
    ]
    if near:
        words = [f"{each.name}'s until {moment(each.until_s)} ({each.remedy})" for each in near]
        return _bad("certificates", f"near their end, or past it: {_some(words)}")
    first = min(ends, key=lambda each: each.until_s)
    days = (first.until_s - now_s) / 86400
    text = f"{len(ends)} are valid; {first.name}'s ends first, in {days:.1f} days"
    return _good("certificates", text)


@dataclass(frozen=True, slots=True)
class _End:
    """When a certificate ends that was issued for so many days."""

    name: str
    until_s: float
    days: float
    remedy: str


def _clock(home: ServerFolder, now_s: float) -> FolderCheck:
    """Nothing was written in the future."""
    begun_s = read_certificate(home.authority.certificate_pem).not_valid_before_utc.timestamp()
    with _journal(home) as journal:
        last_s = max((row["at_s"] for row in journal.events.after(0)), default=begun_s)
    ahead_s = max(last_s, begun_s) - now_s
    if ahead_s > CLOCK_S_MAX:
        text = f"this machine's clock was {ahead_s:.0f} s later before: set it, by NTP"
        return _bad("clock", f"{text}; certificates and leases depend on it")
    return _good("clock", f"{moment(now_s)}, later than everything here")


# ------------------------------------------------------------------ room


def _disk(home: ServerFolder) -> FolderCheck:
    bound = (home.config.storage or StorageConfig()).free_bytes_min
    usage = shutil.disk_usage(home.folder)
    text = f"{amount(usage.free)} of {amount(usage.total)} are free"
    if usage.free < bound:
        remedy = "make room, or `meadow server prune`"
        return _bad("disk", f"{text}, less than storage.free_bytes_min = {amount(bound)}: {remedy}")
    return _good("disk", text)


def _quota(home: ServerFolder) -> FolderCheck:
    quota, used = (home.config.storage or StorageConfig()).bytes_max, folder_bytes(home.folder)
    if quota is None:
        return _good("quota", f"none; the folder has {amount(used)}")
    text = f"the folder has {amount(used)} of {amount(quota)}"
    if used > QUOTA_PART * quota:
        begins = "no run begins" if used >= quota else "at the quota no run begins"
        return _bad("quota", f"{text}; {begins}: `meadow server prune`, or raise storage.bytes_max")
    return _good("quota", text)


# ------------------------------------------------------------------ the daemon, or its ports


def _daemon_runs(home: ServerFolder) -> bool:
    """Whether a daemon holds the folder's lock; it is not kept from starting meanwhile."""
    try:
        fd = os.open(home.folder / "server.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _daemon(home: ServerFolder, now_s: float) -> Iterator[FolderCheck]:
    """It answers at both addresses with a certificate that clients accept."""
    addresses = home.listening()
    if not addresses:
        text = "it runs, and does not listen: it is starting or stopping; see its log"
        yield _bad("daemon", text)
        return
    for name in ("fleet", "enroll"):
        address, now = addresses.get(name, ""), datetime.fromtimestamp(now_s, UTC)
        if why := why_not_reached(
            address, home.authority.certificate_pem, now=now, timeout_s=REACH_S
        ):
            yield _bad("daemon", f"{name}: {why}; its log says more, or restart it")
            continue
        shown = read_certificate(look_at(Address.parse(address), timeout_s=REACH_S)[0])
        until_s = shown.not_valid_after_utc.timestamp()
        text = f"{name} answers at {address}, with a certificate until {moment(until_s)}"
        if is_ending(until_s, SERVER_DAYS, now_s=now_s):
            yield _bad("daemon", f"{text}: restart the daemon, which makes a new one")
        else:
            yield _good("daemon", text)


def _ports(home: ServerFolder) -> Iterator[FolderCheck]:
    """None runs; its ports are free."""
    config = home.config
    waiting = ""
    with _journal(home) as journal:
        if under_way := journal.runs.all("queued", "running"):
            waiting = f"; runs wait for it: {_some(run.id for run in under_way)}"
    yield _good("daemon", f"it does not run{waiting}; `meadow server start --dir {home.folder}`")
    asked = {"fleet_port": (config.listen, config.fleet_port)}
    asked["enroll_port"] = (config.listen, config.enroll_port)
    if config.metrics_address:
        metrics = Address.parse(config.metrics_address)
        asked["metrics_address"] = (metrics.host, metrics.port)
    for key, (host, port) in asked.items():
        where = Address(host, port)
        try:
            family, _, _, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, socket.SOCK_STREAM) as plain:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                plain.bind(name)
        except OSError as error:
            remedy = f"give another {key} in server.toml, or end the program that listens there"
            yield _bad("ports", f"{where}: {error.strerror}; {remedy}")
        else:
            yield _good("ports", f"{where} can be listened on")


# ------------------------------------------------------------------ the databases, and tensors in transit


def _databases(home: ServerFolder) -> Iterator[FolderCheck]:
    found = [("journal", home.folder / "journal.sqlite", JOURNAL_LAYOUT)]
    found.append(("privacy ledger", home.folder / "privacy.sqlite", POPULATION_LAYOUT))
    for subject, path, layout in found:
        if path.exists():
            yield _database(subject, path, layout)
    damaged = home.folder / DAMAGED_NAME
    if damaged.exists():
        yield _good("journal", f"{damaged} is of an earlier repair, and can be moved away")
    ledgers = sorted((home.folder / "runs").glob("[0-9]*/privacy.sqlite"))
    checked = [_database(f"run {path.parent.name}", path, RELEASES_LAYOUT) for path in ledgers]
    yield from (each for each in checked if not each.ok)
    if checked and all(each.ok for each in checked):
        yield _good("run ledgers", f"{len(checked)} are intact")


def _database(subject: str, path: Path, layout: TableLayout) -> FolderCheck:
    """A file of the newest layout is read whole; one of an older layout is left as it is."""
    newest = len(layout.versions)
    try:
        version = _version(path)
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as plain:
            well = plain.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if version > newest:
            text = f"{path} has layout {version}, and this version of Meadow knows {newest}"
            return _bad(subject, f"{text}: a newer one wrote it; use that")
        problems = [] if well == "ok" else [str(well)]
        if version == newest:
            with closing(Database(path, layout)) as database:
                problems = database.problems()
    except DamageError as error:
        return _bad(subject, str(error))
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) not in DAMAGE:
            raise  # a full disk is no damage
        problems = [str(error)]
    if problems:
        return _bad(subject, f"{path} is damaged: {problems[0]}; {layout.remedy}")
    later = "" if version == newest else f", which the daemon brings to {newest} when it opens it"
    return _good(subject, f"{path.name} is intact, with layout {version}{later}")


def _transit(home: ServerFolder, runs_here: bool) -> FolderCheck:
    """What the journal says of tensors in transit is in the spool, with its checksum."""
    spool = Spool(home.folder / "spool", blob_bytes_max=home.config.blob_bytes_max)
    checked, wrong = 0, []
    with _journal(home) as journal:
        for run in journal.runs.all("queued", "running"):
            for step in journal.steps.unfinished(run.id):
                for row in journal.steps.instructions(run.id, step["key"]):
                    if row.state == "pruned":
                        continue
                    sent = row.state == "pending"
                    place = spool.outgoing(run.id) if sent else spool.replies(run.id, row.id)
                    packed = row.envelope if sent else row.reply or b""
                    for blob in blobs_of(pb.Envelope.FromString(packed)):
                        checked += 1
                        why = _why_not_intact(blob_path(place, blob.id), blob)
                        now = {
                            each.id: each.state
                            for each in journal.steps.instructions(run.id, step["key"])
                        }
                        if why and now.get(row.id) == row.state:  # it is in transit still
                            wrong.append(f"run {run.id}, {step['key']}: {why}")
    if wrong:
        remedy = "the run fails when it reads that, and `meadow run resume` repeats the round"
        return _bad("spool", f"{_some(wrong)}; {remedy}")
    moving = " while the daemon works" if runs_here else ""
    return _good("spool", f"{checked} files in transit are as the journal says{moving}")


def _why_not_intact(path: Path, blob: pb.Blob) -> str:
    try:
        require_intact(path, blob)
    except (DamageError, StoreError, OSError) as error:
        return str(error) if path.exists() else f"{path.name} is missing"
    return ""


def _leftovers(home: ServerFolder, runs_here: bool) -> Iterator[FolderCheck]:
    """What ended runs have left to be deleted."""
    with _journal(home) as journal:
        ended = {str(run.id) for run in journal.runs.all(*OVER)}
        unfinished = Retention(home.folder, journal).unfinished()
    names = {path.name for path in (home.folder / "spool").glob("[0-9]*")}
    if unfinished:
        text = f"runs whose deletion was interrupted: {_some(unfinished)}"
        yield _good("prune", f"{text}; the daemon, or `meadow server prune`, ends it")
    if (names & ended) and not runs_here:
        text = f"of runs that have ended: {_some(sorted(names & ended))}"
        yield _good("spool", f"{text}; the next start of the daemon deletes it")


# ------------------------------------------------------------------ what is around the server


def _backup(home: ServerFolder, now_s: float) -> FolderCheck:
    """When the last one was made, as far as the audit log says."""
    made = [
        datetime.fromisoformat(line["at"]).timestamp()
        for line in home.audit_log().lines(BACKUP_LINES_MAX)
        if line["call"] in ("server backup", "server restore") and line["outcome"] == "ok"
    ]
    remedy = f"`meadow server backup FILE --dir {home.folder}`"
    if not made:
        return _good("backup", f"no `meadow server backup` is known of; make one: {remedy}")
    days = (now_s - made[-1]) / 86400
    text = f"the last one was made {days:.1f} days ago"
    if days > BACKUP_DAYS_MAX:
        return _bad("backup", f"{text}: {remedy}")
    return _good("backup", text)


def _receivers(home: ServerFolder, clock: Callable[[], float]) -> Iterator[FolderCheck]:
    """Who is told can be reached; nothing is sent."""
    if home.config.notify is None:
        return
    for receiver in receivers_of(home.config.notify, home.folder, clock=clock):
        if why := receiver.why_not_reached():
            yield _bad("notify", f"{receiver.name}: {why}; see [notify] in server.toml")
        else:
            yield _good("notify", f"{receiver.name}: {receiver.place} can be reached")


def _unit(home: ServerFolder) -> FolderCheck:
    """Whether a unit of systemd starts the daemon after a reboot."""
    for place in UNITS:
        for path in sorted(Path(place).glob("*.service")):
            with suppress(OSError, UnicodeDecodeError):
                lines = path.read_text().splitlines()
                starts = [line for line in lines if line.startswith("ExecStart=")]
                if any(str(home.folder) in line.split() for line in starts):
                    return _good("systemd", f"{path} starts it")
    return _good("systemd", "no unit starts this server; deploy/systemd has one")
