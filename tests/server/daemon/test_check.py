"""`meadow server check`: what is damaged is named, and what is intact is saved."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from meadow.apps.folder import content_hash, pack, unpack
from meadow.cli.server import app as commands
from meadow.errors import DamageError, IdentityError, MeadowError
from meadow.run.run_folder import RunFolder
from meadow.server.daemon.check import check_server_folder, repair_journal
from meadow.server.daemon.server_dir import ServerFolder
from meadow.server.journal.journal import Journal
from meadow.strategies.algorithms.algorithm import State
from meadow.strategies.rounds.recorder import Checkpoint, RoundTable

DIGITS = Path(__file__).parents[3] / "examples" / "digits"


@pytest.fixture
def home(tmp_path: Path) -> ServerFolder:
    """A stopped server: three clients, one of them revoked, and a run with two checkpoints."""
    home = ServerFolder.create(tmp_path / "server", host="localhost", now=datetime.now(UTC))
    app = home.folder / "runs" / "1" / "app"
    unpack(pack(DIGITS), app)
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        for name in ("a", "b", "c"):
            journal.sites.invite(name, f"hash-{name}", now_s=0.0, expires_at_s=1e12)
        journal.sites.revoke("b", now_s=1.0)
        journal.sites.tag("c", ["gpu"])
        run = journal.runs.submit("digits", content_hash(app), "[]", now_s=0.0)
        journal.runs.begin(run, "digits", content_hash(app))
        journal.steps.open(
            run, "3/train/0", "3", quorum=1, deadline_s=1.0, instructions=[("1-x-0", 1, b"e")]
        )
    folder = RunFolder(app.parent, config_toml="", on_event=lambda kind, detail: None)
    for number in (1, 2):
        state = State(params={"w": np.full(9, number, np.float32)}, round=number, slots={})
        checkpoint = Checkpoint(state=state, best=None, stale_rounds=0, history=[])
        folder.commit(checkpoint, {"round": number}, RoundTable())
    return home


def flip(path: Path, place: int = -9) -> None:
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def damage_rows(home: ServerFolder, *statements: str) -> None:
    """Change rows of the journal behind its back."""
    with closing(sqlite3.connect(home.folder / "journal.sqlite", isolation_level=None)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)


def findings(home: ServerFolder) -> dict[str, str]:
    """Return what is damaged, by subject."""
    return {found.subject: found.text for found in check_server_folder(home) if not found.ok}


def test_a_folder_that_is_well(home: ServerFolder) -> None:
    """Everything that was looked at is said, with the rounds that a run can go on from."""
    found = {each.subject: each for each in check_server_folder(home)}
    assert set(found) == {"identity", "journal", "run 1"} and all(f.ok for f in found.values())
    assert "checkpoints of rounds 2, 1" in found["run 1"].text


DAMAGE: dict[str, tuple[Callable[[ServerFolder], object], str, str]] = {
    "row": (
        lambda home: damage_rows(home, "UPDATE runs SET round = 7"),
        "journal", "the row '1' of runs is not as it was written",
    ),
    "instruction": (
        lambda home: damage_rows(home, "UPDATE instructions SET envelope = x'00'"),
        "journal", "the row '1-x-0' of instructions is not as it was written",
    ),
    "no journal": (
        lambda home: (home.folder / "journal.sqlite").write_bytes(b"x" * 5000),
        "journal", "file is not a database",
    ),
    "manifest": (
        lambda home: flip(home.folder / "runs/1/checkpoints/round-000002.json", 12),
        "run 1", "round-000002.json",
    ),
    "params": (
        lambda home: flip(home.folder / "runs/1/checkpoints/round-000001.safetensors"),
        "run 1", "checkpoints of rounds 2",
    ),
    "app": (
        lambda home: flip(home.folder / "runs/1/app/task.py"),
        "run 1", "its app is not the one that was submitted",
    ),
    "admin": (
        lambda home: flip(home.folder / "admin.json", 30),
        "identity", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "subject", "text"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_named(
    home: ServerFolder, harm: Callable[[ServerFolder], object], subject: str, text: str
) -> None:
    """Only what is damaged; the command says it too, and ends with 1."""
    harm(home)
    found = findings(home)
    assert list(found) == [subject] and text in found[subject]
    done = CliRunner().invoke(commands, ["check", "--dir", str(home.folder)])
    assert done.exit_code == 1 and f"damaged  {subject}" in done.stdout


def test_what_is_intact_is_saved(home: ServerFolder) -> None:
    """A damaged client is unknown then, its number is given to nobody, and the run goes on."""
    damage_rows(
        home,
        "UPDATE sites SET name = 'z' WHERE name = 'c'",
        "UPDATE tokens SET name = CAST(x'ff' AS TEXT) WHERE name = 'a'",
        "UPDATE instructions SET node_id = 9",
    )
    with closing(Journal(home.folder / "journal.sqlite")) as journal, pytest.raises(DamageError):
        journal.check()
    saved = repair_journal(home)
    assert {table: (len(s.rows), len(s.lost)) for table, s in saved.items()} == {
        "sites": (2, 1), "site_tags": (1, 0), "tokens": (2, 1), "runs": (1, 0),
        "run_sites": (0, 0),
    }  # fmt: skip
    assert findings(home) == {}
    assert (home.folder / "journal.damaged.sqlite").exists()
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        rows = {site.name: site for site in journal.sites.all()}
        assert set(rows) == {"a", "b"} and rows["b"].revoked_at_s == 1.0
        assert journal.sites.invite("d", "hash-d", now_s=0.0, expires_at_s=1e12) == 4
        assert journal.runs.submit("digits", "", "[]", now_s=0.0) == 2
        assert [run.status for run in journal.runs.all()] == ["queued", "arriving"]
        assert journal.steps.instructions(1, "3/train/0") == []


def test_a_flipped_bit_in_the_layout_hides_no_rows(home: ServerFolder) -> None:
    """SQLite reads no table of a file that has one trigger whose text is none."""
    path = home.folder / "journal.sqlite"
    whole = path.read_bytes()
    assert b"RAISE(ABORT" in whole
    path.write_bytes(whole.replace(b"RAISE(ABORT", b"RAISE(AB\x0fRT"))
    saved = repair_journal(home)
    assert {table: (len(s.rows), len(s.lost)) for table, s in saved.items()} == {
        "sites": (3, 0), "site_tags": (1, 0), "tokens": (3, 0), "runs": (1, 0), "run_sites": (0, 0),
    }  # fmt: skip
    assert findings(home) == {}


def test_a_bit_that_flips_in_the_log_of_a_killed_server(home: ServerFolder) -> None:
    """SQLite would forget without a word what was committed since; it is said, and saved."""
    path = home.folder / "journal.sqlite"
    with closing(Journal(path)) as journal:
        for name in ("d", "e", "f"):
            journal.sites.invite(name, f"hash-{name}", now_s=0.0, expires_at_s=1e12)
            journal.sites.revoke(name, now_s=2.0)
        left = {each: path.with_name(each).read_bytes() for each in (path.name, f"{path.name}-wal")}
    for name, data in left.items():  # as it was, before the last of it was taken over
        (home.folder / name).write_bytes(data)
    flip(path.with_name(f"{path.name}-wal"), 32 + 24 + 100)
    for _ in range(2):
        with pytest.raises(DamageError, match=r"journal.sqlite-wal, frame 1 of .*--repair"):
            Journal(path)
        assert "frame 1 of" in findings(home)["journal"]
    assert [len(each.lost) for each in repair_journal(home).values()] == [0] * 5
    assert findings(home) == {}
    with closing(Journal(path)) as journal:
        revoked = {site.name: site.revoked_at_s for site in journal.sites.all()}
    assert revoked == {"a": None, "b": 1.0, "c": None, "d": 2.0, "e": 2.0, "f": 2.0}


def test_a_journal_of_which_nothing_is_left_is_begun_anew(home: ServerFolder) -> None:
    """The folders of its runs keep their numbers."""
    (home.folder / "journal.sqlite").write_bytes(b"x" * 5000)
    saved = repair_journal(home)
    assert all(not each.rows for each in saved.values())
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        assert journal.runs.submit("digits", "", "[]", now_s=0.0) == 2


def test_only_a_damaged_journal_of_a_stopped_server_is_repaired(home: ServerFolder) -> None:
    """And never over an earlier one that was kept."""
    with pytest.raises(MeadowError, match="is not damaged; nothing was changed"):
        repair_journal(home)
    unlock = home.lock()
    with pytest.raises(MeadowError, match="another server already runs"):
        list(check_server_folder(home))
    unlock()
    (home.folder / "journal.damaged.sqlite").touch()
    with pytest.raises(MeadowError, match="move it away first"):
        repair_journal(home)


@pytest.mark.parametrize("name", ["certificate.pem", "key.pem"])
def test_a_damaged_authority_is_said_when_the_folder_is_read(home: ServerFolder, name: str) -> None:
    """Before clients are turned away one by one, whichever bit it is."""
    path = home.folder / "ca" / name
    good, refused = path.read_bytes(), 0
    for place in range(30, len(good) - 30, 13):
        data = bytearray(good)
        data[place] ^= 1
        path.write_bytes(data)
        try:
            read = ServerFolder(home.folder)
        except IdentityError:
            refused += 1
        else:  # an end of line became another one
            assert read.authority.certificate_pem == home.authority.certificate_pem
    assert refused > 8
