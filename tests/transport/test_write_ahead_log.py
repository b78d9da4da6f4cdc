"""A write-ahead log in which a bit flipped is said to be damaged, and one that a crash cut short is not."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from meadow.errors import DamageError
from meadow.transport.database import Database, TableLayout, salvage
from meadow.transport.write_ahead_log import HEADER_BYTES, accept_log, log_damage, log_of

PAGE, FRAME = 4096, 4096 + 24
TRANSACTIONS = 12
LAYOUT = TableLayout(
    versions=(("CREATE TABLE things (name TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID",),),
    sealed={"things": ("name",)},
    remedy="restore it",
)


def fill(database: Database, count: int = TRANSACTIONS, start: int = 0) -> None:
    rng = random.Random(7)
    for number in range(start, start + count):
        with database.transaction() as db:
            for part in "ab":
                value = rng.randbytes(rng.randrange(10, 2 * PAGE))
                db.execute("INSERT INTO things VALUES (?, ?)", (f"{number}{part}", value))


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """What a process leaves that is killed: a file, and a log with what was committed since."""
    with closing(Database(tmp_path / "live.sqlite", LAYOUT)) as database:
        fill(database)
        return left_by(tmp_path)


def left_by(folder: Path) -> Path:
    for suffix in ("", "-wal"):
        shutil.copyfile(folder / f"live.sqlite{suffix}", folder / f"killed.sqlite{suffix}")
    return folder / "killed.sqlite"


def flip(path: Path, place: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def places(size: int) -> Iterator[int]:
    """Every byte of the header; of some frames their headers and some of the pages; the last frame's end."""
    yield from range(HEADER_BYTES)
    frames = (size - HEADER_BYTES) // FRAME
    for frame in (0, 1, frames // 2, frames - 2, frames - 1):
        start = HEADER_BYTES + frame * FRAME
        yield from range(start, start + 24)
        yield from (start + 24, start + 999, start + FRAME - 1)


def test_every_flipped_bit_is_found(killed: Path) -> None:
    """Wherever it is; and a second look finds it too, as nothing was repaired meanwhile."""
    log = log_of(killed)
    good = log.read_bytes()
    assert log_damage(log) is None
    for place in places(len(good)):
        flip(log, place, place % 8)
        for _ in range(2):
            with pytest.raises(
                DamageError, match=r"killed.sqlite-wal, .* is not as it was written"
            ):
                Database(killed, LAYOUT)
        log.write_bytes(good)
    with closing(Database(killed, LAYOUT)) as database:
        assert len(database.sealed("things", "")) == 2 * TRANSACTIONS


def test_sqlite_says_nothing(killed: Path) -> None:
    """Why it is looked for: what was committed behind a flipped bit would be gone without a word."""
    flip(log_of(killed), HEADER_BYTES + 12 * FRAME + 1000, 3)
    with closing(sqlite3.connect(killed)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("SELECT count(*) FROM things").fetchone()[0] < 2 * TRANSACTIONS


@pytest.mark.parametrize("lost", [b"", b"\x00", b"\x5a"], ids=["cut", "zeros", "older bytes"])
def test_a_log_that_a_crash_cut_short_is_whole(killed: Path, lost: bytes) -> None:
    """However much of the last transaction was not written: nobody was told that it was committed."""
    log = log_of(killed)
    good, rng = log.read_bytes(), random.Random(3)
    for _ in range(40):
        end = rng.randrange(HEADER_BYTES, len(good))
        log.write_bytes(good[:end] + lost * rng.randrange(2 * FRAME))
        assert log_damage(log) is None
    for _ in range(40):  # a block in the last transaction was not written, and those behind it were
        block = len(good) - 512 * rng.randrange(1, 5)
        log.write_bytes(good[:block] + (lost or b"\x00") * 512 + good[block + 512 :])
        assert log_damage(log) is None


def test_what_a_transaction_left_that_was_taken_back(tmp_path: Path) -> None:
    """Its pages may be in the log, behind those of a shorter one that was committed then."""
    with closing(Database(tmp_path / "live.sqlite", LAYOUT)) as database:
        fill(database, 2)
        database.rows("PRAGMA cache_size = 5")
        with pytest.raises(ValueError, match="taken back"), database.transaction() as db:
            for number in range(50):
                db.execute("INSERT INTO things VALUES (?, ?)", (f"x{number}", bytes(PAGE)))
            raise ValueError("taken back")
        before = log_of(tmp_path / "live.sqlite").stat().st_size
        fill(database, 2, start=2)
        assert log_of(tmp_path / "live.sqlite").stat().st_size == before, (
            "it was not written behind"
        )
        assert log_damage(log_of(left_by(tmp_path))) is None


def test_a_log_that_was_begun_again(tmp_path: Path) -> None:
    """Behind what is new there is still what was taken over into the file."""
    with closing(Database(tmp_path / "live.sqlite", LAYOUT)) as database:
        fill(database)
        database.rows("PRAGMA wal_checkpoint")
        fill(database, 2, start=TRANSACTIONS)
        log = log_of(left_by(tmp_path))
        assert log_damage(log) is None
        flip(log, HEADER_BYTES + FRAME + 100, 0)
        assert log_damage(log) is not None


def garbled(log: Path) -> None:
    data = bytearray(log.read_bytes())
    start = HEADER_BYTES + 9 * FRAME + 1024
    data[start : start + 512] = bytes(each ^ 0xA5 for each in data[start : start + 512])
    log.write_bytes(data)


@pytest.mark.parametrize(
    "harm",
    [
        garbled,
        lambda log: flip(log, 14, 2),
        lambda log: flip(log, HEADER_BYTES + 9 * FRAME + 10, 5),
        lambda log: flip(log, HEADER_BYTES + 9 * FRAME + 2000, 5),
    ],
    ids=["a sector", "the header", "a salt", "a page"],
)
def test_what_is_intact_is_saved(killed: Path, harm: Callable[[Path], None]) -> None:
    """What was committed behind the damage too; the files stay as they are."""
    harm(log_of(killed))
    kept = log_of(killed).read_bytes()
    assert log_damage(log_of(killed)) is not None
    found = salvage(killed, LAYOUT, "things")
    assert {row["name"] for row in found.rows} >= {f"{TRANSACTIONS - 1}{part}" for part in "ab"}
    assert len(found.rows) >= 2 * TRANSACTIONS - 2
    assert log_of(killed).read_bytes() == kept
    assert sorted(each.name for each in killed.parent.iterdir() if "killed" in each.name) == [
        "killed.sqlite", "killed.sqlite-wal"
    ]  # fmt: skip


@pytest.mark.parametrize("bytes_of_frame", [1, 24, FRAME - 1])
def test_a_log_whose_first_frame_has_begun(killed: Path, bytes_of_frame: int) -> None:
    """A process that was killed in it, or is writing it now, committed nothing there: no damage."""
    log = log_of(killed)
    with log.open("r+b") as file:
        file.truncate(HEADER_BYTES + bytes_of_frame)
    assert log_damage(log) is None
    accept_log(log)
    with closing(sqlite3.connect(killed)) as plain:  # what SQLite makes of it
        plain.execute("PRAGMA integrity_check")


def test_a_log_that_is_none(tmp_path: Path) -> None:
    """Whatever is in it: no error but SQLite's own."""
    log, rng = tmp_path / "a-wal", random.Random(5)
    for size in (0, 1, 31, 32, 33, 5000):
        log.write_bytes(rng.randbytes(size))
        assert log_damage(log) is None
        accept_log(log)
