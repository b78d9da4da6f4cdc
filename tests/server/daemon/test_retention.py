"""Retention: what goes and what stays, whatever is killed, full or planted in the folder."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_house import SERVICES, Code, House, in_a_house

from meadow.config.server_config import StorageConfig, server_config_to_toml
from meadow.errors import MeadowError, StoreError
from meadow.privacy.dp.accounting.events import GaussianEvent
from meadow.run.privacy_ledger import RunLedger
from meadow.server.daemon import retention as module
from meadow.server.daemon.admin import AdminService
from meadow.server.daemon.audit_trail import AuditTrail
from meadow.server.daemon.check import check_server_folder
from meadow.server.daemon.retention import MARK, Retention, due_runs, folder_bytes, pruned_at
from meadow.server.daemon.server_dir import ServerFolder
from meadow.server.daemon.storage import Storage
from meadow.server.daemon.threads import JournalThread
from meadow.server.journal.journal import Journal
from meadow.server.journal.run_table import RunRow
from meadow.server.tools.pruning import prune_now
from meadow.transport import fleet_pb2 as pb

DAY_S = 86400.0
STAYS = ("meadow.toml", "metrics.jsonl", "summary.json", "privacy.sqlite")
GOES = (
    "app/task.py", "checkpoints/round-000001.json", "checkpoints/params", "model.safetensors",
    "tensorboard/events", "worker.log", "site.key", "clients.jsonl", ".offer/app.zip",
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> ServerFolder:
    """A server with runs 1 to 4, which ended on days 1 to 4, and run 5, which is under way."""
    made = ServerFolder.create(tmp_path / "server", host="localhost", now=datetime.now(UTC))
    with closing(Journal(made.folder / "journal.sqlite")) as journal:
        for day, status in enumerate(("finished", "failed", "stopped", "finished", "running"), 1):
            run_id = journal.runs.submit("app", "x", "[]", now_s=0.0)
            journal.runs.begin(run_id, "app", "x")
            ended_s = None if status == "running" else day * DAY_S
            journal.runs.status(run_id, status, now_s=ended_s)
            journal.events.record(run_id, "status", '{"status": "finished"}', now_s=1.0)
            journal.events.record(run_id, "client_failed", "{}", now_s=1.0)
            laid_out(made.folder, run_id)
    (made.folder / "privacy.sqlite").write_bytes(b"ledger")
    (made.folder / "ledger").write_bytes(b"mark")
    return made


def laid_out(folder: Path, run_id: int) -> None:
    """Lay out what a run leaves."""
    for name in (*STAYS, *GOES):
        path = folder / "runs" / str(run_id) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 1000)
    ledger = folder / "runs" / str(run_id) / "privacy.sqlite"
    ledger.unlink()
    with closing(RunLedger(ledger)) as made:
        made.write(1, GaussianEvent(noise_multiplier=1.0))
    spooled = folder / "spool" / str(run_id) / "down" / "blob"
    spooled.parent.mkdir(parents=True)
    spooled.write_bytes(bytes(5000))


def files(home: ServerFolder, run_id: int) -> set[str]:
    """Return what is left of a run, by name."""
    below = home.folder / "runs" / str(run_id)
    return {path.relative_to(below).as_posix() for path in below.rglob("*") if not path.is_dir()}


def set_up(home: ServerFolder, **storage: object) -> ServerFolder:
    """Return the server with a [storage]."""
    config = replace(home.config, storage=StorageConfig(**storage))  # type: ignore[arg-type]
    (home.folder / "server.toml").write_text(server_config_to_toml(config))
    return ServerFolder(home.folder)


def pruned(home: ServerFolder, *asked: int, dry_run: bool = False, day: float = 10.0) -> list[int]:
    """Prune, and return which runs."""
    found = prune_now(home, asked, dry_run=dry_run, now_s=day * DAY_S)
    return [each.run_id for each in found]


# ------------------------------------------------------------------ what is due


@pytest.mark.parametrize(
    ("storage", "due"),
    [
        ({}, []),
        ({"keep_runs_days": 7.0}, [1, 2, 3]),
        ({"keep_runs_days": 0.0}, [1, 2, 3, 4]),
        ({"keep_runs": 3}, [1]),
        ({"keep_runs": 0}, [1, 2, 3, 4]),
        ({"keep_runs": 3, "keep_runs_days": 8.0}, [1, 2]),
        ({"keep_runs": 9, "keep_runs_days": 100.0}, []),
    ],
)
def test_what_is_due(home: ServerFolder, storage: dict[str, float], due: list[int]) -> None:
    """Ended runs by age and by number, the oldest first, and never one that is under way."""
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        found = due_runs(journal.runs.all(), StorageConfig(**storage), now_s=10 * DAY_S)  # type: ignore[arg-type]
    assert [run.id for run in found] == due


def test_what_goes_and_what_stays(home: ServerFolder) -> None:
    """Large and secret files go; results, the ledgers and the audit log stay. It is audited, and not
    done again."""
    home = set_up(home, keep_runs=3)
    assert pruned(home, dry_run=True) == [1]
    assert files(home, 1) == {*STAYS, *GOES}, "nothing was deleted"
    (found,) = prune_now(home, None, dry_run=True, now_s=10 * DAY_S)
    assert found.size_bytes > 5000 * 9
    assert pruned(home) == [1]
    assert files(home, 1) == {*STAYS, MARK}
    with closing(RunLedger(home.folder / "runs/1/privacy.sqlite")) as ledger:
        assert ledger.count() == 1
    assert pruned_at(home.folder / "runs/1") == "1970-01-11T00:00:00+00:00"
    assert not (home.folder / "spool/1").exists()
    for run_id in (2, 3, 4, 5):
        assert files(home, run_id) == {*STAYS, *GOES}
        assert (home.folder / "spool" / str(run_id)).exists()
    assert (home.folder / "privacy.sqlite").read_bytes() == b"ledger"
    assert (home.folder / "ledger").read_bytes() == b"mark"
    lines = [each for each in home.audit_log().lines(9) if each["call"] == "server prune"]
    assert [each["outcome"] for each in lines] == ["begun", "ok"]
    assert lines[0]["what"]["run"] == 1
    assert pruned(home) == []
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        assert [row["kind"] for row in journal.events.after(1)] == ["status", "pruned"]
        assert len(journal.events.after(2)) == 2
    subjects = {each.subject: each for each in check_server_folder(home)}
    assert subjects["run 1"].ok and "pruned at 1970-01-11" in subjects["run 1"].text


def test_only_what_has_ended(home: ServerFolder) -> None:
    """A run that is asked for must be over, and exist."""
    with pytest.raises(MeadowError, match="run 5 is running; only a run that has ended"):
        pruned(home, 5)
    with pytest.raises(MeadowError, match="there is no run 77"):
        pruned(home, 77)
    assert files(home, 5) == {*STAYS, *GOES}
    assert pruned(home, 2, 4) == [2, 4]


def test_a_run_that_is_resumed_meanwhile(home: ServerFolder) -> None:
    """Between the list and its turn, a run was resumed: it is not touched."""
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        retention = Retention(home.folder, journal)
        assert journal.runs.requeue(2)
        with pytest.raises(MeadowError, match="run 2 is queued"):
            retention.mark(2, now_s=1.0)
    assert files(home, 2) == {*STAYS, *GOES}


def test_pruned_or_resumed(home: ServerFolder) -> None:
    """Of a process that prunes and a daemon that resumes the same run at once, one is refused."""
    outcomes = set()
    with (
        closing(Journal(home.folder / "journal.sqlite")) as ours,
        closing(Journal(home.folder / "journal.sqlite")) as daemons,
    ):
        retention = Retention(home.folder, ours)
        supervisor: Any = SimpleNamespace(run_dir=retention.run_dir)
        admin: Any = SimpleNamespace(_journal=daemons, _supervisor=supervisor)
        for _ in range(30):
            run_id = ours.runs.submit("app", "x", "[]", now_s=0.0)
            ours.runs.status(run_id, "failed", now_s=1.0)
            retention.run_dir(run_id).mkdir()
            (run,) = [each for each in daemons.runs.all() if each.id == run_id]
            together = threading.Barrier(2)
            refused: list[str] = []

            def resume(run: RunRow, together: threading.Barrier, refused: list[str]) -> None:
                together.wait()
                refused.append(AdminService._requeue(admin, run))

            thread = threading.Thread(target=resume, args=(run, together, refused))
            thread.start()
            together.wait()
            with suppress(MeadowError):
                retention.mark(run_id, now_s=1.0)
            thread.join()
            pruned = pruned_at(retention.run_dir(run_id)) is not None
            found = ours.runs.get(run_id)
            assert found is not None
            assert (found.status == "queued") is not pruned
            assert bool(refused[0]) is pruned
            outcomes.add(pruned)
    assert outcomes


# ------------------------------------------------------------------ killed at every point


class Killed(BaseException):
    """The process ends here."""


def killed_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process be killed at its so manieth deletion of a file or folder, in any depth."""
    calls = iter(range(count))

    def dying(name: str) -> None:
        real: Callable[..., None] = getattr(os, name)

        def call(*arguments: object, **options: object) -> None:
            if "dir_fd" in options and next(calls, None) is None:
                raise Killed
            real(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    dying("unlink")
    dying("rmdir")


def test_killed_at_each_deletion(home: ServerFolder) -> None:
    """Whatever was deleted when it was killed: the run is marked, the folder is consistent, other runs
    are whole, and the next pass ends with the same, also if nothing is due any more."""
    expected = {*STAYS, MARK}
    ended = False
    for count in range(100):
        with pytest.MonkeyPatch.context() as patch:
            killed_after(count, patch)
            try:
                pruned(home, 1)
                ended = True
            except Killed:
                pass
        assert pruned_at(home.folder / "runs/1")
        assert expected <= files(home, 1) <= {*expected, *GOES}
        assert all(each.ok for each in check_server_folder(home) if each.subject == "run 1")
        assert ended or pruned(home, dry_run=True) == [1]
        pruned(home)
        assert files(home, 1) == expected and not (home.folder / "spool/1").exists()
        if ended:
            break
        shutil.rmtree(home.folder / "runs/1")
        laid_out(home.folder, 1)
    assert ended and count > 15, "every deletion was tried"
    assert files(home, 2) == {*STAYS, *GOES}


def test_killed_before_the_mark(home: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has gone, and the run can be resumed."""

    def dying(*arguments: object, **options: object) -> None:
        raise Killed

    monkeypatch.setattr(module, "write_file", dying)
    with pytest.raises(Killed):
        pruned(home, 2)
    assert files(home, 2) == {*STAYS, *GOES}
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        assert len(journal.events.after(2)) == 2, "the transaction was undone"
        assert journal.runs.requeue(2)


def test_a_full_disk(home: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the mark cannot be written, nothing is deleted; a deletion that fails is named, and is made
    by the next pass."""

    def full(*arguments: object, **options: object) -> None:
        raise StoreError("No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "write_file", full)
        with pytest.raises(StoreError, match="No space left"):
            pruned(home, 1)
    assert files(home, 1) == {*STAYS, *GOES}

    real = os.unlink

    def failing(name: str, **options: object) -> None:
        if name == "model.safetensors":
            raise OSError(errno.EIO, "Input/output error")
        real(name, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", failing)
        with pytest.raises(StoreError, match=r"model\.safetensors cannot be deleted: Input/output"):
            pruned(home, 1)
    assert "model.safetensors" in files(home, 1)
    assert [each["outcome"] for each in home.audit_log().lines(1)] == ["failed"]
    assert pruned(home) == [1]
    assert files(home, 1) == {*STAYS, MARK}


def test_room_to_make_room(home: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, spare files go first: the mark and the audit log need a few kilobytes."""
    spare = home.folder / "spool" / "spare" / "0"
    spare.parent.mkdir()
    spare.write_bytes(bytes(5000))
    assert pruned(home, 1) == [1]
    assert spare.exists()
    usage = shutil.disk_usage(home.folder)

    def free(folder: Path) -> object:
        return usage._replace(free=1000 if spare.exists() else 500_000)

    monkeypatch.setattr(module.shutil, "disk_usage", free)
    assert pruned(home, 2, dry_run=True) == [2]
    assert spare.exists()
    assert pruned(home, 2) == [2]
    assert not spare.exists()
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: usage._replace(free=1000))
    with pytest.raises(StoreError, match="delete a file elsewhere on it first"):
        pruned(home, 3)
    assert files(home, 3) == {*STAYS, *GOES}


# ------------------------------------------------------------------ links


def test_links_are_not_followed(home: ServerFolder, tmp_path: Path) -> None:
    """An app has planted links to files and folders elsewhere: the links go, what they name stays."""
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "precious").write_text("x")
    (outside / "sub" / "precious").write_text("x")
    below = home.folder / "runs" / "1"
    (below / "link").symlink_to(outside)
    (below / "app" / "deep").symlink_to(outside / "sub")
    (below / "file").symlink_to(outside / "precious")
    shutil.rmtree(below / "tensorboard")
    (below / "tensorboard").symlink_to(outside)
    (below / "dangling").symlink_to("/no/such/place")
    (below / "loop").symlink_to(below)
    os.mkfifo(below / "pipe")
    (home.folder / "spool" / "1" / "link").symlink_to(home.folder / "runs" / "5")
    assert pruned(home, 1) == [1]
    assert files(home, 1) == {*STAYS, MARK}
    assert (outside / "precious").exists() and (outside / "sub" / "precious").exists()
    assert files(home, 5) == {*STAYS, *GOES}


def test_a_run_that_is_a_link(home: ServerFolder, tmp_path: Path) -> None:
    """Nothing behind it is deleted, nor marked, and the command says why; other runs are pruned."""
    (home.folder / "runs" / "1").rename(tmp_path / "moved")
    (home.folder / "runs" / "1").symlink_to(tmp_path / "moved")
    before = sorted(path.name for path in (tmp_path / "moved").iterdir())
    first, second = prune_now(home, [1, 2], dry_run=False, now_s=0.0)
    assert "is a link, which is not followed" in first.problem
    assert not second.problem
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == before
    assert files(home, 2) == {*STAYS, MARK}


def test_what_a_folder_takes(tmp_path: Path) -> None:
    """Files by what they take of the disk, each once, and no link is followed."""
    (tmp_path / "a").write_bytes(bytes(100_000))
    before = folder_bytes(tmp_path)
    assert before >= 100_000
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").symlink_to("/")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert folder_bytes(tmp_path) <= before + 16_384
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert folder_bytes(tmp_path) < 1 << 20


# ------------------------------------------------------------------ in the daemon


@pytest.fixture
def storage(home: ServerFolder) -> Iterator[Callable[[ServerFolder], Storage]]:
    """Return the storage of a daemon of a server."""
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        thread = JournalThread(journal)

        def made(home: ServerFolder) -> Storage:
            audit = AuditTrail(home.audit_log(), clock=lambda: 0.0)
            return Storage(home, journal, thread, audit, clock=lambda: 10 * DAY_S)

        yield made
        thread.close()


def test_the_daemon_prunes(
    home: ServerFolder, storage: Callable[[ServerFolder], Storage], tmp_path: Path
) -> None:
    """As the command does, with a line in the audit log for each run; a link stops no other run."""
    (home.folder / "runs" / "2").rename(tmp_path / "moved")
    (home.folder / "runs" / "2").symlink_to(tmp_path / "moved")
    asyncio.run(storage(set_up(home, keep_runs_days=7.0)).prune())
    assert files(home, 1) == files(home, 3) == {*STAYS, MARK}
    assert files(home, 4) == {*STAYS, *GOES}
    assert (tmp_path / "moved" / "model.safetensors").exists()
    lines = [each for each in home.audit_log().lines(9) if each["call"] == "server prune"]
    assert [each["outcome"] for each in lines] == ["begun", "ok"] * 2
    assert {each["who"] for each in lines} == {"daemon"}


def test_the_daemon_ends_what_was_begun(
    home: ServerFolder, storage: Callable[[ServerFolder], Storage]
) -> None:
    """A run that was marked before a kill is pruned, whatever server.toml says now."""
    (home.folder / "runs" / "4" / MARK).write_text(json.dumps({"at": "then"}))
    asyncio.run(storage(home).prune())
    assert files(home, 4) == {*STAYS, MARK}
    assert files(home, 3) == {*STAYS, *GOES}


def test_a_quota(tmp_path: Path) -> None:
    """At its quota a server begins no run, and says what helps; a pruned run cannot be resumed."""

    async def scenario(house: House) -> None:
        run_dir = house.home.folder / "runs" / str(house.run_id)
        run_dir.mkdir(parents=True)
        (house.home.folder / "large").write_bytes(bytes(3 << 20))
        (run_dir / MARK).write_text('{"at": "2026-01-02"}')
        admin = SERVICES["Admin"].methods_by_name
        code, text = await house.call(admin["Resume"], pb.RunId(id=house.run_id))
        assert code is Code.FAILED_PRECONDITION
        assert "was pruned at 2026-01-02: its checkpoints are gone; submit the app again" in text
        house.daemon._storage._config = StorageConfig(bytes_max=3 << 20)
        opened = pb.SubmitMessage(open=pb.SubmitOpen(name="app", size_bytes=10))
        code, text = await house.call(admin["Submit"], opened)
        assert code is Code.RESOURCE_EXHAUSTED, text
        assert "its quota is 3.1 MB" in text and "meadow server prune" in text
        house.daemon._storage._config = StorageConfig(bytes_max=1 << 30)
        code, text = await house.call(admin["Submit"], opened)
        assert code is Code.INVALID_ARGUMENT, "the app itself is wrong"

    in_a_house(tmp_path / "server", scenario)
