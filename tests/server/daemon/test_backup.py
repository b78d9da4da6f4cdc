"""`meadow server backup` and `restore`: the same server again, and nothing that must not go on."""

from __future__ import annotations

import json
import os
import sqlite3
import tarfile
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from meadow.apps.folder import content_hash, pack, unpack
from meadow.cli.server import app as commands
from meadow.errors import ConfigError, DamageError, StoreError
from meadow.privacy.dp.accounting.events import GaussianEvent
from meadow.run.checkpoints import Checkpoints
from meadow.run.population_ledger import open_population
from meadow.run.privacy_ledger import RunLedger
from meadow.run.run_folder import RunFolder
from meadow.server.daemon.backup import NUMBERS_SKIPPED, back_up, restore
from meadow.server.daemon.check import check_server_folder
from meadow.server.daemon.server_dir import ServerFolder
from meadow.server.journal.journal import Journal
from meadow.strategies.algorithms.algorithm import State
from meadow.strategies.rounds.recorder import Checkpoint, RoundTable

DIGITS = Path(__file__).parents[3] / "examples" / "digits"
NOW = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
PRIVATE = '["privacy.differential_privacy.enabled=true"]'


def commit(folder: RunFolder, number: int) -> None:
    """Commit a round whose params are its number."""
    state = State(params={"w": np.full(300_000, number, np.float32)}, round=number, slots={})
    checkpoint = Checkpoint(state=state, best=None, stale_rounds=0, history=[])
    folder.commit(checkpoint, {"round": number}, RoundTable())


def run_of(home: ServerFolder, status: str, settings: str = "[]") -> Path:
    """Add a run of this status; return its folder."""
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        run = journal.runs.submit("digits", "", settings, now_s=0.0)
        app = home.folder / "runs" / str(run) / "app"
        unpack(pack(DIGITS), app)
        journal.runs.begin(run, "digits", content_hash(app))
        journal.runs.status(run, status)
    return app.parent


@pytest.fixture
def home(tmp_path: Path) -> ServerFolder:
    """A server with three clients, one revoked, and a run in its third round."""
    home = ServerFolder.create(tmp_path / "server", host="localhost", now=datetime.now(UTC))
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        for name in ("a", "b", "c"):
            journal.sites.invite(name, f"hash-{name}", now_s=0.0, expires_at_s=1e12)
        journal.sites.revoke("b", now_s=1.0)
        journal.sites.tag("c", ["gpu"])
    run = run_of(home, "running")
    folder = RunFolder(run, config_toml="", on_event=lambda kind, detail: None)
    commit(folder, 1)
    commit(folder, 2)
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        journal.steps.open(
            1, "3/train/0", "3", quorum=1, deadline_s=1.0, instructions=[("1-x-0", 1, b"e")]
        )
    (home.folder / "spool" / "x").write_bytes(b"in transit")
    return home


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder but its databases, what is made anew, and the audit log, in which
    both commands have written."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
        and ".sqlite" not in path.name
        and path.name != "server.lock"
        and path.parent.name != "audit"
    }


def test_it_is_the_same_server(home: ServerFolder, tmp_path: Path) -> None:
    """Every file, client and checkpoint; the round under way begins anew; numbers go on later."""
    made = back_up(home, tmp_path / "b.tar", now=NOW)
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    assert not list((home.folder / ".backup").iterdir())
    found = restore(tmp_path / "b.tar", tmp_path / "new", now=NOW)
    assert found == made and found.made_at == NOW and not found.abandoned
    before = contents(home.folder)
    assert before.pop("spool/x")
    assert contents(tmp_path / "new") == before
    new = ServerFolder(tmp_path / "new")
    assert all(finding.ok for finding in check_server_folder(new))
    assert (new.folder / "ca" / "key.pem").stat().st_mode & 0o77 == 0
    saved = Checkpoints(new.folder / "runs" / "1" / "checkpoints").newest(lambda kind, detail: None)
    assert saved is not None and saved.state.round == 2
    model = new.folder / "runs" / "1" / "model.safetensors"
    assert os.path.samefile(model, saved.params_file), "it is stored once"
    with closing(Journal(new.folder / "journal.sqlite")) as journal:
        assert [site.name for site in journal.sites.all()] == ["a", "b", "c"]
        assert journal.steps.unfinished(1) == []
        assert journal.runs.submit("d", "", "[]", now_s=0.0) > NUMBERS_SKIPPED
        assert journal.sites.invite("d", "h", now_s=0.0, expires_at_s=1e12) > NUMBERS_SKIPPED


def test_private_runs_do_not_go_on(home: ServerFolder, tmp_path: Path) -> None:
    """Begun or only queued: what they released since is not in the ledger. Others can be resumed, and
    finished ones stay what they are."""
    for status in ("running", "failed", "finished"):
        folder = run_of(home, status)
        with closing(RunLedger(folder / "privacy.sqlite")) as ledger:
            ledger.write(1, GaussianEvent(noise_multiplier=1.0))
    run_of(home, "queued", PRIVATE)
    run_of(home, "queued")
    assert back_up(home, tmp_path / "b.tar", now=NOW).abandoned == (2, 3, 5)
    restore(tmp_path / "b.tar", tmp_path / "new", now=NOW)
    with closing(Journal(tmp_path / "new" / "journal.sqlite")) as journal:
        states = {run.id: run.status for run in journal.runs.all()}
        assert states == {
            1: "running", 2: "abandoned", 3: "abandoned", 4: "finished", 5: "abandoned", 6: "queued",
        }  # fmt: skip
        cause = journal.runs.get(3)
        assert cause is not None and "lacks what the run released since" in cause.cause
        assert not journal.runs.requeue(3)
        kinds = [row["kind"] for row in journal.events.after(0)]
        assert kinds[-1] == "restored"


def test_a_ledger_of_all_runs_stays_valid(home: ServerFolder, tmp_path: Path) -> None:
    """The mark beside it is not newer than the ledger."""
    with closing(open_population(home.folder)) as population:
        population.ask(1, "client", [(GaussianEvent(noise_multiplier=1.0), 3)])
    back_up(home, tmp_path / "b.tar", now=NOW)
    restore(tmp_path / "b.tar", tmp_path / "new", now=NOW)
    with closing(open_population(tmp_path / "new")) as population:
        assert len(population.rows()) == 1


def test_while_rounds_are_committed(home: ServerFolder, tmp_path: Path) -> None:
    """Each backup is of one moment: its newest checkpoint is intact, and no newer than its rows."""
    over, rounds = threading.Event(), [2]
    folder = RunFolder(
        home.folder / "runs" / "1", config_toml="", on_event=lambda kind, detail: None
    )
    folder.resume()

    def go_on() -> None:
        while not over.is_set():
            rounds[0] += 1
            commit(folder, rounds[0])

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for number in range(6):
            reached = rounds[0]
            back_up(home, tmp_path / f"{number}.tar", now=NOW)
            restore(tmp_path / f"{number}.tar", tmp_path / str(number), now=NOW)
            copy = tmp_path / str(number) / "runs" / "1"
            checkpoints = Checkpoints(copy / "checkpoints")
            saved = checkpoints.newest(lambda kind, detail: None)
            assert saved is not None and not checkpoints.problems()
            assert saved.state.round >= reached - 1
            assert (saved.state.params["w"] == saved.state.round).all()
            again = RunFolder(copy, config_toml="", on_event=lambda kind, detail: None).resume()
            assert again is not None and len(again.history) == again.state.round
    finally:
        over.set()
        thread.join()


def test_what_was_cut_or_changed_is_refused(home: ServerFolder, tmp_path: Path) -> None:
    """Anywhere in the file but where the format has only padding; nothing is left of it."""
    file = tmp_path / "b.tar"
    back_up(home, file, now=NOW)
    whole = file.read_bytes()
    with tarfile.open(file) as tar:
        files = [(each.offset, each.offset_data, each.size) for each in tar if each.size]
    for header, data, size in files:
        for place in (header, data, data + size // 2, data + size - 1):
            changed = bytearray(whole)
            changed[place] ^= 1
            file.write_bytes(changed)
            with pytest.raises(DamageError, match=r"b\.tar"):
                restore(file, tmp_path / "new", now=NOW)
    for length in (0, 511, 5000, len(whole) // 2, len(whole) - 12_000):
        file.write_bytes(whole[:length])
        with pytest.raises(DamageError, match=r"b\.tar is no whole backup"):
            restore(file, tmp_path / "new", now=NOW)
    assert not [path.name for path in tmp_path.iterdir() if "new" in path.name]


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "ca/key.pem"])
def test_no_file_is_written_elsewhere(home: ServerFolder, tmp_path: Path, name: str) -> None:
    """A member outside the folder, a link, or a name twice."""
    back_up(home, tmp_path / "b.tar", now=NOW)
    with tarfile.open(tmp_path / "b.tar") as old, tarfile.open(tmp_path / "c.tar", "w") as new:
        new.addfile(tarfile.TarInfo(name))
        for member in old:
            new.addfile(member, old.extractfile(member))
    with pytest.raises(DamageError, match="no whole backup"):
        restore(tmp_path / "c.tar", tmp_path / "new", now=NOW)
    with tarfile.open(tmp_path / "d.tar", "w") as new:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        new.addfile(link)
    with pytest.raises(DamageError, match="no whole backup"):
        restore(tmp_path / "d.tar", tmp_path / "new", now=NOW)
    assert not (tmp_path / "out").exists() and not (tmp_path / "new").exists()


def test_what_is_refused(home: ServerFolder, tmp_path: Path) -> None:
    """A backup within the folder, two at once, and a folder that is there."""
    with pytest.raises(ConfigError, match="would be lost with it"):
        back_up(home, home.folder / "b.tar", now=NOW)
    back_up(home, tmp_path / "b.tar", now=NOW)
    with pytest.raises(ConfigError, match="restore into a new folder"):
        restore(tmp_path / "b.tar", home.folder, now=NOW)
    before = (tmp_path / "b.tar").read_bytes()
    (home.folder / "runs" / "1" / "privacy.sqlite").write_bytes(b"SQLite format 3\0" + bytes(900))
    with pytest.raises(StoreError, match=r"privacy\.sqlite cannot be copied"):
        back_up(home, tmp_path / "b.tar", now=NOW)
    assert (tmp_path / "b.tar").read_bytes() == before, "the earlier one stays"


def test_the_commands(home: ServerFolder, tmp_path: Path) -> None:
    """They say what is secret, what to do next, and what the check finds."""
    file, new = str(tmp_path / "b.tar"), str(tmp_path / "new")
    made = CliRunner().invoke(commands, ["backup", file, "--dir", str(home.folder)])
    assert made.exit_code == 0 and "keep it under lock" in made.output
    done = CliRunner().invoke(commands, ["restore", file, "--dir", new])
    assert done.exit_code == 0, done.output
    assert "meadow site revoke CLIENT" in done.output and "ok       journal" in done.output
    with tarfile.open(file) as tar:
        told = json.loads(tar.extractfile("manifest.json").read())  # type: ignore[union-attr]
    assert "secret key" in told["read_this"]
    with closing(sqlite3.connect(tmp_path / "new" / "journal.sqlite")) as found:
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)
