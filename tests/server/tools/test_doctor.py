"""`meadow server doctor`: finds what is wrong, says the remedy, changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import sqlite3
import ssl
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from daemon_house import House, in_a_house
from free_ports import free_port
from webhooks import WebhookServer

from meadow.config.server_config import server_config_to_toml
from meadow.privacy.dp.accounting.events import GaussianEvent
from meadow.run.population_ledger import open_population
from meadow.run.privacy_ledger import RunLedger
from meadow.server.daemon.check import FolderCheck
from meadow.server.daemon.server_dir import ServerFolder
from meadow.server.journal.journal import Journal
from meadow.server.tools import doctor
from meadow.server.tools.doctor import examine_server
from meadow.server.tools.pruning import prune_now
from meadow.transport import fleet_pb2 as pb
from meadow.transport.blobs import blob_path
from meadow.transport.tensors import checksum

DAY_S = 86400.0
REMEDIES = ("`", "make ", "raise ", "set it", "give ", "restore", "restart", "use that", "[notify]")


@pytest.fixture
def home(tmp_path: Path) -> ServerFolder:
    """A server of an hour ago, whose ports are free, with a client and a run under way that sends it a file."""
    made = ServerFolder.create(tmp_path / "server", host="localhost", now=datetime.now(UTC))
    text = (made.folder / "server.toml").read_text()
    for port in (9443, 9444):
        text = text.replace(str(port), str(free_port()))
    (made.folder / "server.toml").write_text(text)
    until_s = datetime.now(UTC).timestamp() + 7 * DAY_S
    with closing(Journal(made.folder / "journal.sqlite")) as journal:
        node = journal.sites.invite("hospital-a", "hash", now_s=0.0, expires_at_s=1e12)
        journal.sites.certify("hospital-a", "serial", shown=None, until_s=until_s)
        run_id = journal.runs.submit("app", "x", "[]", now_s=0.0)
        journal.runs.begin(run_id, "app", "x")
        place = made.folder / "spool" / str(run_id) / "down"
        place.mkdir(parents=True)
        blob_path(place, "params").write_bytes(b"x" * 5000)
        there = checksum(blob_path(place, "params"))
        blob = pb.Blob(id="params", size_bytes=there.size_bytes, crc32=there.crc32)
        envelope = pb.Envelope(records=[pb.Record(name="a", arrays=pb.Arrays(blob=blob))])
        journal.steps.open(
            run_id, "1/train/0", "1", quorum=1, deadline_s=1e12,
            instructions=[("i1", node, envelope.SerializeToString())],
        )  # fmt: skip
    (made.folder / "runs" / "1").mkdir()
    with closing(RunLedger(made.folder / "runs" / "1" / "privacy.sqlite")) as ledger:
        ledger.write(1, GaussianEvent(noise_multiplier=1.0))
    with closing(open_population(made.folder)) as population:
        population.ask(1, "client", ((GaussianEvent(noise_multiplier=5.0), 3),))
    with made.audited("server backup", file="x"):
        pass
    return ServerFolder(made.folder)


@pytest.fixture(autouse=True)
def _roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk have room, whatever this machine's has."""
    usage = SimpleNamespace(total=10**12, free=10**11)
    monkeypatch.setattr(doctor, "shutil", SimpleNamespace(disk_usage=lambda folder: usage))


def problems(folder: Path, days: float = 0.0) -> dict[str, str]:
    """Return what is wrong, so many days from now, by subject."""
    now_s = datetime.now(UTC).timestamp() + days * DAY_S
    found = list(examine_server(folder, clock=lambda: now_s))
    assert all(check.text and "\n" not in check.text for check in found)
    return {check.subject: check.text for check in found if not check.ok}


def said(folder: Path) -> str:
    """Return everything that is said."""
    return "\n".join(f"{each.subject}: {each.text}" for each in examine_server(folder))


def contents(folder: Path) -> dict[str, str]:
    """Return the files of a folder with their hashes, but for SQLite's shared memory."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


def test_a_server_that_is_well(home: ServerFolder) -> None:
    """There is no problem, each part is named, and nothing is changed."""
    before = contents(home.folder)
    assert problems(home.folder) == {}
    text = said(home.folder)
    for part in (
        "3 are valid; hospital-a's ends first", "it does not run; runs wait for it: 1", "can be listened on",
        "journal.sqlite is intact, with layout 3", "privacy.sqlite is intact", "run ledgers: 1 are intact",
        "1 files in transit are as the journal says", "the last one was made 0.0 days ago",
    ):  # fmt: skip
        assert part in text, part
    assert contents(home.folder) == before


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def _sql(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as found:
        found.create_function("checksum", -1, lambda *values: 0, deterministic=True)
        found.execute(statement)
        found.commit()


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def _without_triggers(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as found:
        names = [
            row[0] for row in found.execute("SELECT name FROM sqlite_master WHERE type='trigger'")
        ]
        kept = [
            row[0] for row in found.execute("SELECT sql FROM sqlite_master WHERE type='trigger'")
        ]
        for name in names:
            found.execute(f"DROP TRIGGER {name}")
        found.execute(statement)
        for sql in kept:
            found.execute(sql)
        found.commit()


Broken = tuple[Callable[[Path], object], str, str]
BREAKS: dict[str, Broken] = {
    "server.toml": (lambda f: _append(f / "server.toml", "x = "), "server.toml", "server.toml"),
    "no authority": (lambda f: (f / "ca/key.pem").unlink(), "server.toml", "restore them from a backup"),
    "open key": (lambda f: (f / "ca/key.pem").chmod(0o644), "secrets", "chmod 600"),
    "open admin": (lambda f: (f / "admin.json").chmod(0o640), "secrets", "chmod 600"),
    "open folder": (lambda f: f.chmod(0o750), "secrets", "chmod 700"),
    "disk": (lambda f: _append(f / "server.toml", f"[storage]\nfree_bytes_min = {1 << 59}\n"), "disk", "meadow server prune"),
    "quota": (lambda f: (_append(f / "server.toml", f"[storage]\nbytes_max = {1 << 20}\n"), (f / "large").write_bytes(bytes(1 << 20))), "quota", "no run begins"),
    "journal row": (lambda f: _without_triggers(f / "journal.sqlite", "UPDATE runs SET app = 'other'"), "journal", "meadow server check"),
    "journal layout": (lambda f: _sql(f / "journal.sqlite", "PRAGMA user_version = 99"), "journal", "a newer one wrote it"),
    "journal file": (lambda f: (f / "journal.sqlite").write_bytes(b"x" * 9000), "journal", "is damaged"),
    "run ledger": (lambda f: _without_triggers(f / "runs/1/privacy.sqlite", "UPDATE releases SET round = 9"), "run 1", "restore it from a backup"),
    "population ledger": (lambda f: _without_triggers(f / "privacy.sqlite", "UPDATE asked SET count = 0"), "privacy ledger", "restore it from a backup"),
    "changed blob": (lambda f: _flip(f / "spool/1/down/params.safetensors"), "spool", "has changed on the disk"),
    "missing blob": (lambda f: (f / "spool/1/down/params.safetensors").unlink(), "spool", "is missing"),
    "audit log": (lambda f: _flip(f / "audit/000001.jsonl"), "audit", "line"),
    "no key of notify": (lambda f: _append(f / "server.toml", '[notify]\nurl = "https://localhost/"\nkey_file = "k"\n'), "notify", "openssl rand"),
    "no command": (lambda f: _append(f / "server.toml", '[notify]\ncommand = ["/no/such/sendmail"]\n'), "notify", "does not exist"),
    "no program": (lambda f: ((f / "hook").touch(), _append(f / "server.toml", f'[notify]\ncommand = ["{f}/hook"]\n')), "notify", "may not be executed"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_broken(home: ServerFolder, name: str) -> None:
    """Each is found under its subject, with what is wrong and the remedy, and everything else is still
    looked at. It is left as it is."""
    do, subject, words = BREAKS[name]
    do(home.folder)
    before = contents(home.folder)
    found = problems(home.folder)
    assert words in found[subject], found
    if subject != "server.toml":
        assert any(each in found[subject] for each in (*REMEDIES, "line")), found[subject]
        assert "audit: " in said(home.folder)
    assert contents(home.folder) == before


def test_what_time_brings(home: ServerFolder) -> None:
    """Certificates near their end and old backups, and a clock that is set back."""
    assert set(problems(home.folder, days=5.9)) == set()
    found = problems(home.folder, days=6.1)
    assert "hospital-a" in found["certificates"] and "meadow server invite" in found["certificates"]
    found = problems(home.folder, days=9)
    assert "meadow server backup" in found["backup"]
    found = problems(home.folder, days=3640)
    assert "make a new server" in found["certificates"]
    assert "renew-admin" in found["certificates"]
    found = problems(home.folder, days=-1)
    assert "NTP" in found["clock"]


def test_an_older_journal_is_left_alone(home: ServerFolder) -> None:
    """It is brought up to date by whoever opens it to write: not by this command."""
    _sql(home.folder / "journal.sqlite", "PRAGMA user_version = 1")
    before = contents(home.folder)
    assert "layout 1" in problems(home.folder)["certificates"]
    assert contents(home.folder) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_somebody_else(home: ServerFolder) -> None:
    """As a command that root has called may leave them."""
    os.chown(home.folder / "journal.sqlite", 12345, 12345)
    assert "chown -R" in problems(home.folder)["owners"]


def test_a_port_that_is_taken(home: ServerFolder) -> None:
    """While no daemon runs, its ports are tried."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", home.config.fleet_port))
        taken.listen()
        assert f"127.0.0.1:{home.config.fleet_port}" in problems(home.folder)["ports"]


def test_a_webhook(home: ServerFolder, tmp_path: Path) -> None:
    """It is connected to and sent nothing; one that is not there, or has another certificate, is named."""
    hook = WebhookServer()
    key = home.folder / "k"
    key.write_text("k" * 40)
    key.chmod(0o600)
    original = (home.folder / "server.toml").read_text()

    def told(url: str) -> dict[str, str]:
        text = f'{original}[notify]\nurl = "{url}"\nkey_file = "k"\n'
        (home.folder / "server.toml").write_text(text)
        return problems(home.folder)

    assert told(hook.url) == {}
    assert not hook.got
    hook.close()
    assert "refused" in told(hook.url)["notify"].lower()
    pair = home.authority.issue_server(("localhost",), days=1, now=datetime.now(UTC))
    (tmp_path / "pair.pem").write_bytes(pair.key_pem + pair.certificate_pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "pair.pem")

    async def main() -> dict[str, str]:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        try:
            return await asyncio.to_thread(told, f"https://localhost:{port}/")
        finally:
            server.close()

    assert "its certificate is not accepted" in asyncio.run(main())["notify"]


def test_a_deletion_that_was_interrupted(home: ServerFolder) -> None:
    """It is said, and is no problem."""
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        journal.runs.status(1, "finished", now_s=1.0)
    assert [each.run_id for each in prune_now(home, [1], dry_run=False, now_s=1.0)] == [1]
    (home.folder / "runs/1/model.safetensors").write_bytes(b"left")
    assert "prune: runs whose deletion was interrupted: 1" in said(home.folder)
    assert problems(home.folder) == {}


def test_a_unit_of_systemd(
    home: ServerFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose command has this folder is named."""
    monkeypatch.setattr(doctor, "UNITS", (str(tmp_path / "units"),))
    assert "no unit starts this server" in said(home.folder)
    (tmp_path / "units").mkdir()
    unit = tmp_path / "units" / "fl.service"
    unit.write_text(f"[Service]\nExecStart=/x/meadow server start --dir {home.folder}\n")
    assert f"{unit} starts it" in said(home.folder)


def test_beside_a_daemon(tmp_path: Path) -> None:
    """It is asked at both addresses, and goes on; an address that is another's is a problem."""

    def look(folder: Path) -> list[FolderCheck]:
        return list(examine_server(folder))

    async def scenario(house: House) -> None:
        found = await asyncio.to_thread(look, house.home.folder)
        daemon = [each for each in found if each.subject == "daemon"]
        assert [each.ok for each in daemon] == [True, True], daemon
        assert "fleet answers at localhost:" in daemon[0].text
        assert all(each.ok for each in found), [each.text for each in found if not each.ok]
        listening = house.home.folder / "listening.json"
        before = listening.read_text()
        listening.write_text(json.dumps({**json.loads(before), "fleet": "localhost:1"}))
        found = await asyncio.to_thread(look, house.home.folder)
        listening.write_text(before)
        (wrong,) = [each for each in found if not each.ok]
        assert wrong.subject == "daemon" and "localhost:1" in wrong.text

    in_a_house(tmp_path / "server", scenario)


def test_it_keeps_no_daemon_from_starting(home: ServerFolder) -> None:
    """The folder's lock is free while it looks, and whether it is taken is known."""
    checks = examine_server(home.folder)
    next(checks)
    next(checks)
    unlock = home.lock()
    try:
        assert "it runs, and does not listen" in problems(home.folder)["daemon"]
    finally:
        unlock()
        checks.close()  # type: ignore[attr-defined]


def test_the_old_config_still_reads(home: ServerFolder) -> None:
    """The fixture's own text is what `meadow server init` writes, with other ports."""
    assert server_config_to_toml(home.config) == (home.folder / "server.toml").read_text()
