"""The agent's database: its replies, the apps' client state, and the owner's ledger."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from ...transport import database
from ...transport.database import TableLayout, columns_of

__all__ = ["AGENT_LAYOUT", "AgentDatabase"]

_VERSION_1: Final = """
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY,         -- 64 unsigned bits: more than SQLite's integers hold
    state BLOB NOT NULL,
    used INTEGER NOT NULL            -- counts up; the smallest was used longest ago
);
CREATE TABLE IF NOT EXISTS replies (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    instruction_id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL,
    envelope BLOB NOT NULL,
    acknowledged INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS participations (
    instruction_id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    round TEXT NOT NULL,
    app TEXT NOT NULL,
    day TEXT NOT NULL                -- UTC, YYYY-MM-DD
);
CREATE INDEX IF NOT EXISTS participations_day ON participations (day);
CREATE TABLE IF NOT EXISTS spent (
    content TEXT PRIMARY KEY,        -- digest of an instruction: its id alone may come again
    run_id TEXT NOT NULL,
    app TEXT NOT NULL,
    cost REAL,                       -- by the round's noise; NULL if it has none
    gaussian INTEGER NOT NULL,       -- whether a closed form gives the epsilon of the cost
    record_multiplier REAL,          -- of DP-SGD's steps; NULL if there are none
    record_rate REAL,
    record_steps INTEGER
);
CREATE TABLE IF NOT EXISTS refusals (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    instruction_id TEXT NOT NULL,
    app TEXT NOT NULL,
    at_s REAL NOT NULL,
    reason TEXT NOT NULL
);
"""


def _take_over_spent(db: sqlite3.Connection) -> None:
    """Convert the table of costs from databases without a version."""
    there = columns_of(db, "spent")
    if "multiplier" in there:
        db.execute("ALTER TABLE spent RENAME COLUMN multiplier TO cost")
        db.execute("UPDATE spent SET cost = 1.0 / (cost * cost)")
        db.execute("ALTER TABLE spent ADD COLUMN gaussian INTEGER NOT NULL DEFAULT 1")
    if "record_steps" not in there:
        for column in ("record_multiplier REAL", "record_rate REAL", "record_steps INTEGER"):
            db.execute(f"ALTER TABLE spent ADD COLUMN {column}")
    db.execute(  # the cost of rounds before the ledger is unknown
        "INSERT INTO spent (content, run_id, app, cost, gaussian)"
        " SELECT instruction_id, run_id, app, NULL, 0 FROM participations"
        " WHERE NOT EXISTS (SELECT 1 FROM spent)"
    )


_VERSION_2: Final = """
CREATE TABLE counted (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- no row is ever deleted: the numbers have no gap
    content TEXT NOT NULL UNIQUE,    -- digest of an instruction: its id alone may come again
    answered INTEGER NOT NULL,       -- whether its reply was committed: it is not executed again
    run_id TEXT NOT NULL,
    round TEXT NOT NULL,
    app TEXT NOT NULL,
    day TEXT NOT NULL,               -- UTC, YYYY-MM-DD
    cost REAL,                       -- by the round's noise; NULL if it has none
    gaussian INTEGER NOT NULL,       -- whether a closed form gives the epsilon of the cost
    record_multiplier REAL,          -- of DP-SGD's steps; NULL if there are none
    record_rate REAL,
    record_steps INTEGER
);
INSERT INTO counted (content, answered, run_id, round, app, day, cost, gaussian,
                     record_multiplier, record_rate, record_steps)
    SELECT content, 1, run_id, '', app, '', cost, gaussian,
           record_multiplier, record_rate, record_steps FROM spent ORDER BY rowid;
DROP TABLE spent;
DROP TABLE participations;
ALTER TABLE counted RENAME TO spent;
CREATE INDEX spent_by_day ON spent (day);
CREATE TABLE ledger (
    id TEXT NOT NULL                 -- one row: what identity/ledger must say, too
);
"""

_VERSION_3: Final = """
ALTER TABLE replies ADD COLUMN app TEXT NOT NULL DEFAULT '';    -- of the instruction, for the owner's log
ALTER TABLE replies ADD COLUMN sha256 TEXT NOT NULL DEFAULT '';
ALTER TABLE replies ADD COLUMN norm REAL;
ALTER TABLE replies ADD COLUMN epsilon REAL;
ALTER TABLE replies ADD COLUMN record_epsilon REAL;
"""

AGENT_LAYOUT: Final = TableLayout(
    versions=((_VERSION_1, _take_over_spent), (_VERSION_2,), (_VERSION_3,)),
    sealed={
        "runs": ("run_id",),
        "replies": ("number",),
        "spent": ("content",),
        "ledger": ("id",),
    },
    remedy=(
        "it has the privacy ledger of this data, so the agent stops until its owner acts: restore "
        "the file from a backup that no round came after, or move the agent's folder away and "
        "enrol anew"
    ),
)


class AgentDatabase(database.Database):
    """An agent's `agent.sqlite`; may be used from any thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, AGENT_LAYOUT)
