"""SQLite files: their layout's version, and rows that are not as they were written."""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from meadow.client.owner.database import AGENT_LAYOUT
from meadow.errors import DamageError, StoreError
from meadow.run.population_ledger import POPULATION_LAYOUT
from meadow.run.privacy_ledger import RELEASES_LAYOUT
from meadow.server.journal.database import JOURNAL_LAYOUT
from meadow.transport.database import Database, TableLayout

LAYOUTS = {
    "journal": JOURNAL_LAYOUT,
    "agent": AGENT_LAYOUT,
    "releases": RELEASES_LAYOUT,
    "population": POPULATION_LAYOUT,
}


def plain(path: Path) -> closing[sqlite3.Connection]:
    """Open a file as another program does, which knows nothing of seals."""
    return closing(sqlite3.connect(path, isolation_level=None))


def tables(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the columns of a file's tables, with their types."""
    with plain(path) as db:
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: sorted((row[1], row[2]) for row in db.execute(f"PRAGMA table_info({name})"))
            for (name,) in names
            if not name.startswith("sqlite_")
        }


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_file_says_its_version(layout: TableLayout, tmp_path: Path) -> None:
    """And opening it again changes nothing."""
    path = tmp_path / "file.sqlite"
    Database(path, layout).close()
    before = path.read_bytes()
    with plain(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(layout.versions),)
    Database(path, layout).close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_newer_file_is_refused(layout: TableLayout, tmp_path: Path) -> None:
    """With both versions and the remedy, not with SQL's words."""
    path = tmp_path / "file.sqlite"
    Database(path, layout).close()
    with plain(path) as db:
        db.execute(f"PRAGMA user_version = {len(layout.versions) + 1}")
    with pytest.raises(StoreError, match=r"a newer one wrote it; use that, or a backup"):
        Database(path, layout)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_an_upgrade_that_fails_leaves_the_old_file(layout: TableLayout, tmp_path: Path) -> None:
    """All of an upgrade is there or nothing: the version that wrote the file reads it as before."""
    path = tmp_path / "file.sqlite"
    Database(path, layout).close()
    with plain(path) as db:
        before = [*db.iterdump()]

    def fails(db: sqlite3.Connection) -> None:
        raise OSError("in the middle")

    table = next(iter(layout.sealed))
    change = f"ALTER TABLE {table} ADD COLUMN more TEXT"
    for failing, error in (("INSERT INTO nowhere VALUES (1)", StoreError), (fails, OSError)):
        newer = replace(layout, versions=(*layout.versions, (change, failing)))
        with pytest.raises(error, match=r"nowhere|in the middle"):
            Database(path, newer)
        with plain(path) as db:
            assert [*db.iterdump()] == before
        Database(path, layout).close()


def test_a_layout_changes_only_by_a_new_version() -> None:
    """Files of each version are somewhere: what made them stays, and what is new comes at the end.

    If this fails, do not change the digest of a version that is there: add a version.
    """
    found = {
        name: [*(digest("".join(part for part in each if isinstance(part, str)))
                 for each in layout.versions), digest(repr(dict(layout.sealed)))]
        for name, layout in LAYOUTS.items()
    }  # fmt: skip
    assert found == {
        "journal": ["27ea8196913b0df9", "039fb3b071d48e2e", "cce2fc2130df4b4e", "660ee21cc8ae28de"],
        "agent": [
            "f23e5ddf7df4a7e0",
            "976887b5f222a19c",
            "80cca55a26abcb7d",
            "630659a36830ec36",
        ],
        "releases": ["da147605ccf53260", "f287732c62e0b9d0", "3185bd45e68d489d"],
        "population": ["7fbd06964a2acd67", "8b326c3877f825c3", "1243751552c53b8e"],
    }


def digest(text: str) -> str:
    """Return what tells one text from another."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


SPENT = {
    "of yesterday": (
        """CREATE TABLE spent (content TEXT PRIMARY KEY, run_id TEXT NOT NULL, app TEXT NOT NULL,
        multiplier REAL);
        INSERT INTO spent VALUES ('c', '7', 'digits', 2.0), ('d', '7', 'digits', NULL);""",
        [("c", 0.25, 1, None), ("d", None, 1, None)],
    ),
    "before records": (
        """CREATE TABLE spent (content TEXT PRIMARY KEY, run_id TEXT NOT NULL, app TEXT NOT NULL,
        cost REAL, gaussian INTEGER NOT NULL);
        INSERT INTO spent VALUES ('c', '7', 'digits', 3, 0);""",
        [("c", 3.0, 0, None)],
    ),
    "before the ledger": ("", [("1-a-0", None, 0, None)]),
}


@pytest.mark.parametrize(("script", "expected"), SPENT.values(), ids=SPENT.keys())
def test_an_agents_file_from_before_versions_is_taken_over(
    script: str, expected: list[tuple[object, ...]], tmp_path: Path
) -> None:
    """What was spent is kept; rounds of which nobody wrote the noise down count as without."""
    path = tmp_path / "agent.sqlite"
    with plain(path) as db:
        db.executescript(
            "CREATE TABLE participations (instruction_id TEXT PRIMARY KEY, run_id TEXT NOT NULL,"
            " round TEXT NOT NULL, app TEXT NOT NULL, day TEXT NOT NULL);"
            "INSERT INTO participations VALUES ('1-a-0', '7', '1', 'digits', '2026-11-20');"
            + script
        )
    with closing(Database(path, AGENT_LAYOUT)) as database:
        rows = database.rows("SELECT content, cost, gaussian, record_steps FROM spent")
        assert [tuple(row) for row in rows] == expected
        database.check()
    Database(tmp_path / "fresh.sqlite", AGENT_LAYOUT).close()
    assert tables(path) == tables(tmp_path / "fresh.sqlite")


def test_a_journal_from_before_versions_is_taken_over(tmp_path: Path) -> None:
    """One of yesterday, and an older one that knew no tags."""
    path = tmp_path / "journal.sqlite"
    (script,) = (part for part in JOURNAL_LAYOUT.versions[0] if isinstance(part, str))
    with plain(path) as db:
        db.executescript(script)
        db.execute("DROP TABLE site_tags")
        db.execute("INSERT INTO sites (name) VALUES ('site-a')")
    with closing(Database(path, JOURNAL_LAYOUT)) as database:
        database.check()
        assert [row["name"] for row in database.sealed("sites", "")] == ["site-a"]


@pytest.mark.parametrize("layout", [JOURNAL_LAYOUT, AGENT_LAYOUT, RELEASES_LAYOUT])
def test_a_file_of_nobody_knows_when_is_refused(layout: TableLayout, tmp_path: Path) -> None:
    """It says which table is not as expected, and the file stays as it was."""
    path, table = tmp_path / "file.sqlite", next(iter(layout.sealed))
    with plain(path) as db:
        db.executescript(
            f"CREATE TABLE {table} (number INTEGER, run_id, name, round, run_key);"
            "CREATE TABLE participations (instruction_id, run_id, app, day)"
        )
    before = tables(path)
    with pytest.raises(StoreError) as refused:
        Database(path, layout)
    assert layout.remedy in str(refused.value) or "no such column" in str(refused.value)
    assert tables(path) == before


# ------------------------------------------------------------------------ seals

THINGS = TableLayout(
    versions=(("CREATE TABLE things (a TEXT, b REAL, c BLOB, d INTEGER, PRIMARY KEY (a, d))",),),
    sealed={"things": ("a", "d")},
    remedy="ask somebody",
)
DAMAGE: dict[str, Callable[[sqlite3.Connection], object]] = {
    "text": lambda db: db.execute("UPDATE things SET a = 'ooe' WHERE d = 1"),
    "number": lambda db: db.execute("UPDATE things SET b = 2 WHERE d = 1"),
    "bytes": lambda db: db.execute("UPDATE things SET c = x'0103' WHERE d = 1"),
    "no text": lambda db: db.execute("UPDATE things SET a = CAST(x'ff80' AS TEXT) WHERE d = 1"),
    "gone": lambda db: db.execute("DELETE FROM things WHERE d = 1"),
}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A file with two things."""
    path = tmp_path / "things.sqlite"
    with closing(Database(path, THINGS)) as database, database.transaction() as rows:
        rows.execute("INSERT INTO things VALUES ('one', 1, x'0102', 1)")
        rows.execute("INSERT OR REPLACE INTO things VALUES ('one', 1.5, x'0102', 1)")
        rows.execute("INSERT INTO things VALUES ('two', NULL, NULL, 2)")
        rows.execute("UPDATE things SET d = 3 WHERE a = 'two'")
    yield path


def damage(path: Path, how: Callable[[sqlite3.Connection], object]) -> None:
    """Change a file behind its back."""
    with plain(path) as db:
        triggers = db.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        how(db)
        for _, sql in triggers:
            db.execute(sql)


def test_what_is_as_it_was_written_is_read(path: Path) -> None:
    """Whatever was written over, replaced or named anew."""
    with closing(Database(path, THINGS)) as database:
        database.check()
        assert database.sealed("things", "ORDER BY d") == [
            {"a": "one", "b": 1.5, "c": b"\1\2", "d": 1},
            {"a": "two", "b": None, "c": None, "d": 3},
        ]


@pytest.mark.parametrize("how", DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_found(path: Path, how: Callable[[sqlite3.Connection], object]) -> None:
    """By a check in any case; and nothing reads the row, or changes it and makes it good again."""
    damage(path, how)
    with closing(Database(path, THINGS)) as database:
        with pytest.raises(DamageError, match=r"things\.sqlite is damaged: .*; ask somebody"):
            database.check()
        if database.rows("SELECT 1 FROM things WHERE d = 1"):
            with pytest.raises(DamageError):
                database.sealed("things", "")
            with pytest.raises(DamageError), database.transaction() as rows:
                rows.execute("UPDATE things SET b = 9 WHERE d = 1")
        assert len(database.sealed("things", "WHERE d = 3")) == 1


def test_every_flipped_bit_is_found_or_harmless(path: Path) -> None:
    """Of all bits of the file: what is read afterwards is what was written, or an error."""
    with closing(Database(path, THINGS)) as database:
        written = database.sealed("things", "ORDER BY d")
        database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    good = path.read_bytes()
    found = 0
    for place in range(0, len(good), 37):
        data = bytearray(good)
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        path.with_name("things.sqlite-wal").unlink(missing_ok=True)
        try:
            with closing(Database(path, THINGS)) as database:
                database.check()
                assert database.sealed("things", "ORDER BY d") == written, place
        except StoreError:
            found += 1
    assert found


FULL = """
import sys
from pathlib import Path
from meadow.errors import StoreError
from meadow.transport.database import Database, TableLayout
layout = TableLayout(versions=(("CREATE TABLE t (a)",),), sealed={}, remedy="-")
database = Database(Path(sys.argv[1]), layout)
database.rows("PRAGMA max_page_count = 8")
try:
    with database.transaction() as rows:
        rows.execute("INSERT INTO t VALUES (randomblob(1000000))")
except StoreError as error:
    print(error)
database.rows("PRAGMA max_page_count = 80000")
with database.transaction() as rows:
    rows.execute("INSERT INTO t VALUES (1)")
print([tuple(row) for row in database.rows("SELECT a FROM t")])
"""


def test_a_full_disk_is_the_cause_and_passes(tmp_path: Path) -> None:
    """SQLite ends the transaction by itself; what is said is the cause, not that there is none."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "full.sqlite")],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    said, rows = done.stdout.splitlines()
    assert said.endswith("full.sqlite: database or disk is full")
    assert rows == "[(1,)]"
