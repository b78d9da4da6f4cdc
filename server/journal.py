"""The journal: what the server knows and must not forget, in SQLite.

One writer thread, WAL mode, every transaction durable before it returns. Tensors are files in
the spool; the journal says which of them count. A reply is taken at most once: the instruction's
row changes from pending to answered in the same transaction that stores the reply.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import IdentityError, StoreError

__all__ = ["InstructionRow", "Journal", "RunRow", "SiteRow"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sites (
    node_id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
    serial TEXT, previous_serial TEXT, certificate_until_s REAL NOT NULL DEFAULT 0,
    connected INTEGER NOT NULL DEFAULT 0, seen_at_s REAL NOT NULL DEFAULT 0,
    revoked_at_s REAL, version TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS tokens (
    hash TEXT PRIMARY KEY, name TEXT NOT NULL, expires_at_s REAL NOT NULL, used_at_s REAL);
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, app TEXT NOT NULL, sha256 TEXT NOT NULL,
    settings TEXT NOT NULL, status TEXT NOT NULL, cause TEXT NOT NULL DEFAULT '',
    round INTEGER NOT NULL DEFAULT 0, rounds INTEGER NOT NULL DEFAULT 0, ready BLOB,
    submitted_at_s REAL NOT NULL, finished_at_s REAL);
CREATE TABLE IF NOT EXISTS steps (
    run_id INTEGER NOT NULL, key TEXT NOT NULL, group_id TEXT NOT NULL,
    quorum INTEGER NOT NULL, deadline_s REAL NOT NULL, ended INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS instructions (
    id TEXT PRIMARY KEY, run_id INTEGER NOT NULL, step_key TEXT NOT NULL,
    node_id INTEGER NOT NULL, envelope BLOB NOT NULL, state TEXT NOT NULL, reply BLOB);
CREATE INDEX IF NOT EXISTS instructions_by_step ON instructions (run_id, step_key);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at_s REAL NOT NULL, run_id INTEGER NOT NULL,
    kind TEXT NOT NULL, json TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_by_run ON events (run_id, id);
"""

EVENTS_PER_RUN_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRow:
    """One enrolled or invited client."""

    node_id: int
    name: str
    serial: str | None
    previous_serial: str | None
    certificate_until_s: float
    connected: bool
    seen_at_s: float
    revoked_at_s: float | None
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run; `ready` is the worker's serialised `WorkerReady`, once it has one."""

    id: int
    app: str
    sha256: str
    settings: str
    status: str
    cause: str
    round: int
    rounds: int
    ready: bytes | None
    submitted_at_s: float
    finished_at_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionRow:
    """One instruction and, when answered, its reply (serialised envelopes)."""

    id: str
    run_id: int
    step_key: str
    node_id: int
    envelope: bytes
    state: str
    """pending, answered or pruned."""
    reply: bytes | None


class Journal:
    """All of the server's durable facts. Methods block; call them off the event loop."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA busy_timeout = 10000")
            self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise StoreError(f"the journal {path} cannot be opened: {error}") from None
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close the file; the last committed transaction stays."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            try:
                self._db.execute("COMMIT")
            except sqlite3.OperationalError as error:  # a full disk, for instance
                self._db.execute("ROLLBACK")
                raise StoreError(f"the journal could not be written: {error}") from None

    def _rows(self, sql: str, *values: object) -> list[sqlite3.Row]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    # ------------------------------------------------------------------ sites and tokens

    def invite(self, name: str, token_hash: str, *, expires_at_s: float) -> int:
        """Store a one-time token for `name` and return its node id, which stays the same."""
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO sites (name) VALUES (?)", (name,))
            db.execute(
                "INSERT INTO tokens (hash, name, expires_at_s) VALUES (?, ?, ?)",
                (token_hash, name, expires_at_s),
            )
            row = db.execute("SELECT node_id FROM sites WHERE name = ?", (name,)).fetchone()
        return int(row["node_id"])

    def redeem(self, token_hash: str, *, now_s: float) -> SiteRow:
        """Use up a token and return the site that it was made for.

        Raises:
            IdentityError: the token is unknown, used or expired. All three read the same to the
                peer; the text is for the server's own log.
        """
        with self._transaction() as db:
            row = db.execute("SELECT * FROM tokens WHERE hash = ?", (token_hash,)).fetchone()
            if row is None:
                raise IdentityError("the enrolment token is unknown")
            if row["used_at_s"] is not None:
                raise IdentityError(f"the enrolment token of {row['name']} was already used")
            if row["expires_at_s"] < now_s:
                raise IdentityError(f"the enrolment token of {row['name']} has expired")
            db.execute("UPDATE tokens SET used_at_s = ? WHERE hash = ?", (now_s, token_hash))
            db.execute(
                "UPDATE sites SET revoked_at_s = NULL, serial = NULL, previous_serial = NULL"
                " WHERE name = ?",
                (row["name"],),
            )
            site = db.execute("SELECT * FROM sites WHERE name = ?", (row["name"],)).fetchone()
        return _site(site)

    def certify(self, name: str, serial: str, *, shown: str | None, until_s: float) -> None:
        """Bind a new certificate to a site; beside it only the one that it has shown is good."""
        with self._transaction() as db:
            db.execute(
                "UPDATE sites SET previous_serial = ?, serial = ?, certificate_until_s = ?"
                " WHERE name = ?",
                (shown, serial, until_s, name),
            )

    def sites(self) -> list[SiteRow]:
        """Return all sites by node id."""
        return [_site(row) for row in self._rows("SELECT * FROM sites ORDER BY node_id")]

    def site(self, name: str) -> SiteRow | None:
        """Return one site by name."""
        rows = self._rows("SELECT * FROM sites WHERE name = ?", name)
        return _site(rows[0]) if rows else None

    def seen(self, node_id: int, *, connected: bool, now_s: float, version: str = "") -> None:
        """Record that a site connected or went away."""
        with self._transaction() as db:
            db.execute(
                "UPDATE sites SET connected = ?, seen_at_s = ?,"
                " version = CASE WHEN ? = '' THEN version ELSE ? END WHERE node_id = ?",
                (int(connected), now_s, version, version, node_id),
            )

    def revoke(self, name: str, *, now_s: float) -> bool:
        """Refuse a site from now on; its unused tokens are void. False if there is none."""
        with self._transaction() as db:
            changed = db.execute(
                "UPDATE sites SET revoked_at_s = ? WHERE name = ?", (now_s, name)
            ).rowcount
            db.execute(
                "UPDATE tokens SET used_at_s = ? WHERE name = ? AND used_at_s IS NULL",
                (now_s, name),
            )
        return changed > 0

    # ------------------------------------------------------------------ runs

    def submit(self, app: str, sha256: str, settings: str, *, now_s: float) -> int:
        """Record a new run and return its id; nothing happens until its status is queued."""
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO runs (app, sha256, settings, status, submitted_at_s)"
                " VALUES (?, ?, ?, 'arriving', ?)",
                (app, sha256, settings, now_s),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def run_begin(self, run_id: int, app: str, sha256: str) -> None:
        """Queue a run whose app is in place."""
        with self._transaction() as db:
            db.execute(
                "UPDATE runs SET status = 'queued', app = ?, sha256 = ? WHERE id = ?",
                (app, sha256, run_id),
            )

    def run_status(
        self, run_id: int, status: str, *, cause: str = "", now_s: float | None = None
    ) -> None:
        """Change a run's status; `now_s` marks its end."""
        with self._transaction() as db:
            db.execute(
                "UPDATE runs SET status = ?, cause = ?, finished_at_s = ? WHERE id = ?",
                (status, cause, now_s, run_id),
            )

    def run_ready(self, run_id: int, *, rounds: int, ready: bytes) -> None:
        """Record what the worker found in the app."""
        with self._transaction() as db:
            db.execute(
                "UPDATE runs SET rounds = ?, ready = ? WHERE id = ?", (rounds, ready, run_id)
            )

    def runs(self, *statuses: str) -> list[RunRow]:
        """Return the runs with one of these statuses, or all, oldest first."""
        marks = ",".join("?" * len(statuses))
        where = f"WHERE status IN ({marks})" if statuses else ""
        rows = self._rows(f"SELECT * FROM runs {where} ORDER BY id", *statuses)
        return [RunRow(**dict(row)) for row in rows]

    def run(self, run_id: int) -> RunRow | None:
        """Return one run."""
        rows = self._rows("SELECT * FROM runs WHERE id = ?", run_id)
        return RunRow(**dict(rows[0])) if rows else None

    # ------------------------------------------------------------------ steps and replies

    def open_step(
        self,
        run_id: int,
        key: str,
        group_id: str,
        *,
        quorum: int,
        deadline_s: float,
        instructions: Sequence[tuple[str, int, bytes]],
    ) -> bool:
        """Record a step and its instructions (id, node, envelope) in one transaction.

        Returns False, and changes nothing, if the step is already there: a restarted worker
        repeats itself, and what was recorded first counts.
        """
        with self._transaction() as db:
            fresh = db.execute(
                "INSERT OR IGNORE INTO steps (run_id, key, group_id, quorum, deadline_s)"
                " VALUES (?, ?, ?, ?, ?)",
                (run_id, key, group_id, quorum, deadline_s),
            ).rowcount
            if fresh:
                db.executemany(
                    "INSERT INTO instructions (id, run_id, step_key, node_id, envelope, state)"
                    " VALUES (?, ?, ?, ?, ?, 'pending')",
                    [(id_, run_id, key, node, envelope) for id_, node, envelope in instructions],
                )
        return bool(fresh)

    def instructions(self, run_id: int, step_key: str) -> list[InstructionRow]:
        """Return a step's instructions in the order in which they were given."""
        rows = self._rows(
            "SELECT * FROM instructions WHERE run_id = ? AND step_key = ? ORDER BY rowid",
            run_id,
            step_key,
        )
        return [InstructionRow(**dict(row)) for row in rows]

    def instruction_ids(self, run_id: int) -> set[str]:
        """Return the ids of all instructions of a run that are not forgotten."""
        return {
            row["id"] for row in self._rows("SELECT id FROM instructions WHERE run_id = ?", run_id)
        }

    def step_ended(self, run_id: int, key: str) -> bool:
        """Return whether a step is over."""
        rows = self._rows("SELECT ended FROM steps WHERE run_id = ? AND key = ?", run_id, key)
        return bool(rows and rows[0]["ended"])

    def open_steps(self, run_id: int) -> list[sqlite3.Row]:
        """Return the steps of a run that are not over (key, quorum, deadline_s)."""
        return self._rows("SELECT * FROM steps WHERE run_id = ? AND ended = 0", run_id)

    def cohorts(self, run_id: int) -> dict[str, list[int]]:
        """Return who was drawn for the rounds that are not durable yet, by group."""
        rows = self._rows(
            "SELECT DISTINCT group_id, node_id FROM instructions JOIN steps"
            " ON steps.run_id = instructions.run_id AND steps.key = step_key"
            " WHERE steps.run_id = ? AND key = group_id || '/train/0' AND group_id != ''",
            run_id,
        )
        cohorts: dict[str, list[int]] = {}
        for row in rows:
            cohorts.setdefault(row["group_id"], []).append(row["node_id"])
        return cohorts

    def answer(self, instruction_id: str, reply: bytes) -> bool:
        """Take a reply. False if this instruction needs none (any more): nothing changes."""
        with self._transaction() as db:
            changed = db.execute(
                "UPDATE instructions SET state = 'answered', reply = ?"
                " WHERE id = ? AND state = 'pending'",
                (reply, instruction_id),
            ).rowcount
        return changed > 0

    def end_step(self, run_id: int, key: str) -> list[str]:
        """End a step: what was not answered is pruned. Returns the pruned instructions' ids."""
        with self._transaction() as db:
            db.execute("UPDATE steps SET ended = 1 WHERE run_id = ? AND key = ?", (run_id, key))
            pruned = db.execute(
                "UPDATE instructions SET state = 'pruned'"
                " WHERE run_id = ? AND step_key = ? AND state = 'pending' RETURNING id",
                (run_id, key),
            ).fetchall()
        return [row["id"] for row in pruned]

    def forget(self, run_id: int, group_id: str | None) -> list[str]:
        """Drop a group's steps (or all of the run's) and return their instructions' ids."""
        chosen = "SELECT key FROM steps WHERE run_id = ? AND (? IS NULL OR group_id = ?)"
        values = (run_id, group_id, group_id)
        with self._transaction() as db:
            gone = db.execute(
                f"DELETE FROM instructions WHERE run_id = ? AND step_key IN ({chosen})"
                " RETURNING id",
                (run_id, *values),
            ).fetchall()
            db.execute("DELETE FROM steps WHERE run_id = ? AND (? IS NULL OR group_id = ?)", values)
        return [row["id"] for row in gone]

    # ------------------------------------------------------------------ events

    def record(self, run_id: int, kind: str, json: str, *, now_s: float, round: int = 0) -> int:
        """Append an event (run 0: the server's own) and return its number."""
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO events (at_s, run_id, kind, json) VALUES (?, ?, ?, ?)",
                (now_s, run_id, kind, json),
            )
            if round:
                db.execute("UPDATE runs SET round = ? WHERE id = ?", (round, run_id))
            db.execute(
                "DELETE FROM events WHERE run_id = ? AND id <= ?",
                (run_id, (cursor.lastrowid or 0) - EVENTS_PER_RUN_MAX),
            )
        return cursor.lastrowid or 0

    def events(self, run_id: int, *, after: int = 0) -> list[sqlite3.Row]:
        """Return a run's events (id, at_s, kind, json) that came after number `after`."""
        return self._rows(
            "SELECT * FROM events WHERE run_id = ? AND id > ? ORDER BY id", run_id, after
        )


def _site(row: sqlite3.Row) -> SiteRow:
    values = dict(row)
    values["connected"] = bool(values["connected"])
    return SiteRow(**values)
