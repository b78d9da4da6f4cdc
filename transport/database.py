"""SQLite files with a versioned layout, whose rows carry checksums.

A file's `PRAGMA user_version` counts the layout's versions: an older file is brought up to date when it is
opened, a newer one is refused. The table `seals` holds a CRC-32 of the values of each row that matters.
Triggers write it, so that no writer can omit it; a row that does not match its checksum is neither
read nor changed.
"""

from __future__ import annotations

import shutil
import sqlite3
import struct
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from zlib_ng.zlib_ng import crc32

from ..errors import DamageError, StoreError
from .write_ahead_log import accept_log, log_damage, log_of

__all__ = ["Database", "Salvage", "Script", "TableLayout", "columns_of", "salvage"]

Script = str | Callable[[sqlite3.Connection], None]

BUSY_WAIT_MS: Final = 10_000
PROBLEMS_MAX: Final = 20
_DAMAGE: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_SEALS: Final = (
    "CREATE TABLE IF NOT EXISTS seals (part TEXT NOT NULL, row TEXT NOT NULL,"
    " crc32 INTEGER NOT NULL, PRIMARY KEY (part, row)) WITHOUT ROWID"
)
_NOT_AS_WRITTEN: Final = "is not as it was written"
_DAMAGE_TEXTS: Final = (_NOT_AS_WRITTEN, "UTF-8", "user-defined function")
"""Parts of the messages that SQLite raises for a damaged row: by a trigger, or by invalid UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """The tables of a file.

    Attributes:
        versions: the scripts that lead from each version to the next, the first from an empty file
            or from one that was written before versions were counted. A version that was released
            never changes; a change of the layout is a further script at the end.
        sealed: the tables whose rows are checked, and the columns that name a row.
        remedy: what an operator can do about a damaged file, as the end of an error message.
    """

    versions: tuple[tuple[Script, ...], ...]
    sealed: Mapping[str, tuple[str, ...]]
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvage:
    """The readable part of a table in a damaged file.

    Attributes:
        rows: the intact rows.
        lost: the names of the rows that are damaged or missing.
    """

    rows: list[dict[str, Any]]
    lost: list[str]


class Database:
    """An SQLite file in WAL mode; used by one thread at a time. None for the path: in memory.

    Guarantees: every transaction is durable when it ends; without `sync` it survives the process's
        death, but not the machine's.
    Raises:
        DamageError: the file is no database, or not as it was written.
        StoreError: it is of a newer version of Meadow, or the disk fails.
    """

    def __init__(self, path: Path | None, layout: TableLayout, *, sync: bool = True) -> None:
        self.path = path
        self._layout = layout
        self._lock = threading.RLock()
        self._columns: dict[str, list[str]] = {}
        if path is not None and (what := log_damage(log_of(path), synced=sync)) is not None:
            raise self._damaged(f"{log_of(path).name}, {what}, {_NOT_AS_WRITTEN}")
        with self._typed():
            self._db = sqlite3.connect(
                path or ":memory:", check_same_thread=False, isolation_level=None
            )
        try:
            with self._typed():
                self._db.row_factory = sqlite3.Row
                self._db.create_function("checksum", -1, _checksum, deterministic=True)
                self._db.execute(f"PRAGMA busy_timeout = {BUSY_WAIT_MS}")
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
                self._bring_up_to_date()
                self._columns = {each: columns_of(self._db, each) for each in layout.sealed}
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file; the last transaction stays."""
        with self._lock:
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction: all of it is there afterwards, or nothing.

        Raises:
            DamageError: a row that it would change is damaged.
            StoreError: the disk is full or fails; nothing is changed.
        """
        with self._lock, self._typed():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:  # a full disk ends it by itself
                    self._db.execute("ROLLBACK")

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        """Return the rows that a query finds, without checking their checksums."""
        with self._lock, self._typed():
            return self._db.execute(sql, values).fetchall()

    def sealed(
        self, table: str, condition: str, values: Sequence[object] = ()
    ) -> list[dict[str, Any]]:
        """Return the rows of a sealed table; `condition` begins with WHERE or ORDER BY, or is empty.

        Raises:
            DamageError: one of them is not as it was written.
        """
        intact = (
            f"{self._seal_of(table)} IS (SELECT crc32 FROM seals WHERE {self._is_seal_of(table)})"
        )
        found = [
            dict(row)
            for row in self.rows(f"SELECT *, {intact} AS intact FROM {table} {condition}", values)
        ]
        for row in found:
            if not row.pop("intact"):
                name = ", ".join(str(row[key]) for key in self._layout.sealed[table])
                raise self._damaged(f"the row {name[:100]!r} of {table} {_NOT_AS_WRITTEN}")
        return found

    def problems(self, *, besides: Collection[str] = ()) -> list[str]:
        """Return what `check` would raise, each as a sentence; empty if all is well."""
        found: list[str] = []
        with self._lock:
            try:
                rows = self._db.execute(f"PRAGMA integrity_check({PROBLEMS_MAX})").fetchall()
                found += [text for (text,) in rows if text != "ok"]
            except (sqlite3.Error, UnicodeDecodeError) as error:
                found.append(str(error))
            for table in self._layout.sealed.keys() - set(besides):
                try:
                    found += [
                        f"the row {row!r} of {table} {how}" for row, how in self._unlike(table)
                    ]
                except (sqlite3.Error, UnicodeDecodeError) as error:
                    found.append(f"{table} cannot be read: {error}")
        return found

    def take_over(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows of another file into a table."""
        with self.transaction() as db:
            for row in rows:
                columns, marks = ", ".join(row), ", ".join("?" * len(row))
                db.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", [*row.values()])

    def check(self, *, besides: Collection[str] = ()) -> None:
        """Read the whole file, but for the tables `besides`, whose rows are checked when they are
        read.

        Raises:
            DamageError: something in it is not as it was written.
        """
        if problems := self.problems(besides=besides):
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise self._damaged(f"{problems[0]}{more}")

    # ------------------------------------------------------------------ versions

    def _bring_up_to_date(self) -> None:
        versions = self._layout.versions
        if self._version() == len(versions):
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            version = self._version()  # another process may have updated it meanwhile
            if version > len(versions):
                raise StoreError(
                    f"{self.path} has layout {version}, and this version of Meadow knows layouts up "
                    f"to {len(versions)}: a newer one wrote it; use that, or a backup from before"
                )
            if version:
                self._refuse_damage()
            self._unseal()
            for script in (part for each in versions[version:] for part in each):
                self._execute(script)
            if self.path is not None and not version:
                self._require_columns()
            self._seal()
            self._db.execute(f"PRAGMA user_version = {len(versions)}")
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _execute(self, script: Script) -> None:
        if callable(script):
            script(self._db)
            return
        for statement in _statements(script):
            self._db.execute(statement)

    def _require_columns(self) -> None:
        """Refuse a file from before versions were counted that the first script does not know."""
        with closing(Database(None, self._layout)) as fresh:
            for table in _tables(fresh._db):
                there, wanted = columns_of(self._db, table), columns_of(fresh._db, table)
                if table != "seals" and there != wanted:
                    raise StoreError(
                        f"{self.path} was written before version 0.1 of Meadow, and cannot be used: "
                        f"its table {table} has the columns {', '.join(there)}, not "
                        f"{', '.join(wanted)}; {self._layout.remedy}"
                    )

    # ------------------------------------------------------------------ seals

    def _seal(self) -> None:
        self._db.execute(_SEALS)
        for table in self._layout.sealed:
            new, old = self._seal_of(table, "NEW."), self._seal_of(table, "OLD.")
            there = f"SELECT crc32 FROM seals WHERE {self._is_seal_of(table, 'OLD.')}"
            name = self._name_of(table)
            refuse = (
                f"SELECT RAISE(ABORT, 'a row of {table} {_NOT_AS_WRITTEN}')"
                f" WHERE {old} IS NOT ({there});"
            )
            write = (
                "INSERT OR REPLACE INTO seals VALUES"
                f" ('{table}', {self._name_of(table, 'NEW.')}, {new});"
            )
            remove = f"DELETE FROM seals WHERE {self._is_seal_of(table, 'OLD.')};"
            for moment, body in (
                ("INSERT", write),
                ("UPDATE", refuse + remove + write),
                ("DELETE", remove),
            ):
                self._db.execute(
                    f"CREATE TRIGGER seal_{table}_{moment.lower()} AFTER {moment} ON {table}"
                    f" BEGIN {body} END"
                )
            self._db.execute(
                f"INSERT INTO seals SELECT '{table}', {name}, {self._seal_of(table)} FROM {table}"
            )

    def _unseal(self) -> None:
        found = self._db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'seal\\_%' ESCAPE '\\'"
        )
        for (name,) in found.fetchall():
            self._db.execute(f"DROP TRIGGER {name}")
        self._db.execute("DROP TABLE IF EXISTS seals")

    def _refuse_damage(self) -> None:
        sealed = self._db.execute(
            "SELECT DISTINCT tbl_name FROM sqlite_master WHERE type = 'trigger'"
            " AND name LIKE 'seal\\_%' ESCAPE '\\'"
        ).fetchall()
        for (table,) in sealed:
            for row, how in self._unlike(table):
                raise self._damaged(f"the row {row!r} of {table} {how}")

    def _unlike(self, table: str) -> list[tuple[str, str]]:
        """Return the rows of a table that are not as they were written, and those that are gone."""
        seal = f"(SELECT crc32 FROM seals WHERE {self._is_seal_of(table)})"
        name, limit = self._name_of(table), f"LIMIT {PROBLEMS_MAX}"
        changed = self._db.execute(
            f"SELECT {name} FROM {table} WHERE {self._seal_of(table)} IS NOT {seal} {limit}"
        ).fetchall()
        gone = self._db.execute(
            f"SELECT row FROM seals WHERE part = '{table}'"
            f" AND row NOT IN (SELECT {name} FROM {table}) {limit}"
        ).fetchall()
        return [(str(row), _NOT_AS_WRITTEN) for (row,) in changed] + [
            (str(row), "is gone") for (row,) in gone
        ]

    def _name_of(self, table: str, prefix: str = "") -> str:
        keys = (f"{prefix or f'{table}.'}{key}" for key in self._layout.sealed[table])
        return "CAST(" + " || ' ' || ".join(keys) + " AS TEXT)"

    def _is_seal_of(self, table: str, prefix: str = "") -> str:
        return f"part = '{table}' AND row = {self._name_of(table, prefix)}"

    def _seal_of(self, table: str, prefix: str = "") -> str:
        columns = self._columns.get(table) or columns_of(self._db, table)
        return f"checksum({', '.join(prefix + column for column in columns)})"

    # ------------------------------------------------------------------ errors

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:  # of SQLite's own text about a damaged layout
            raise self._damaged("its layout is not valid text") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0)
            is_damage = any(text in str(error) for text in _DAMAGE_TEXTS)
            if is_damage or code & 0xFF in _DAMAGE:
                raise self._damaged(str(error)) from error
            raise StoreError(f"{self.path}: {error}") from error

    def _damaged(self, what: str) -> DamageError:
        return DamageError(f"{self.path} is damaged: {what}; {self._layout.remedy}")


def salvage(path: Path, layout: TableLayout, table: str) -> Salvage:
    """Read what is intact in a table of a damaged file, which is not changed."""
    if log_damage(log_of(path)) is None:
        return _salvage(path, layout, table)
    with TemporaryDirectory(dir=path.parent) as folder:  # SQLite would not read on
        copy = Path(folder, path.name)
        shutil.copyfile(path, copy)
        shutil.copyfile(log_of(path), log_of(copy))
        accept_log(log_of(copy))
        return _salvage(copy, layout, table)


def _salvage(path: Path, layout: TableLayout, table: str) -> Salvage:
    seals: dict[str, int] = {}
    found: dict[str, dict[str, Any]] = {}
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        db.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        db.execute("PRAGMA writable_schema = ON")  # or one damaged trigger would hide every table
        for row in _until_damage(db, "SELECT * FROM seals WHERE part = ?", table):
            seals[str(row["row"])] = row["crc32"]
        for order in ("ASC", "DESC"):  # what lies behind a damaged page is read from the other end
            for row in _until_damage(db, f"SELECT * FROM {table} ORDER BY 1 {order}"):
                name = " ".join(str(row[key]) for key in layout.sealed[table])
                if seals.get(name) == _checksum(*row.values()):
                    found[name] = row
    return Salvage(rows=[*found.values()], lost=[name for name in seals if name not in found])


def _until_damage(db: sqlite3.Connection, sql: str, *values: object) -> Iterator[dict[str, Any]]:
    """Yield rows until one cannot be read."""
    try:
        cursor = db.execute(sql, values)
        names = [column[0] for column in cursor.description]
        while (row := cursor.fetchone()) is not None:
            yield dict(zip(names, row, strict=True))
    except (sqlite3.Error, UnicodeDecodeError):
        return


def columns_of(db: sqlite3.Connection, table: str) -> list[str]:
    """Return the names of a table's columns, empty if there is no such table."""
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def _tables(db: sqlite3.Connection) -> list[str]:
    found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return [name for (name,) in found if not name.startswith("sqlite_")]


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for part in script.split(";"):
        statement += f"{part};"
        if sqlite3.complete_statement(statement):
            if statement.strip() != ";":
                yield statement
            statement = ""


def _checksum(*values: object) -> int:
    """Return the CRC-32 of a row's values, each with its type and length."""
    crc = 0
    for value in values:
        if isinstance(value, bytes):
            data = value
        elif isinstance(value, float):
            data = struct.pack("<d", value)
        else:
            data = str(value).encode("utf-8", "surrogateescape")
        crc = crc32(data, crc32(f"{type(value).__name__}:{len(data)}:".encode(), crc))
    return crc
