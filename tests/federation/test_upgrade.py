"""From a release to this version: its folders are taken over, and a run goes on over the upgrade."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from meadow.transport.identity import read_certificate

from .processes import Process, free_port, meadow, wait_until

pytestmark = pytest.mark.fleet

RELEASES = Path(__file__).parents[1] / "shared" / "releases"
ROOT = Path(__file__).parents[2]
COMMITS = {"0.1.0": "919d5f4d35f9b615355731dca3e65cb7ad1318f8"}
MAKE = runpy.run_path(str(RELEASES / "make.py"))


def unpack(release: str, folder: Path) -> None:
    """Lay out the folders of a release: see tests/shared/releases/make.py."""
    with tarfile.open(RELEASES / f"{release}.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    authority = read_certificate((folder / "server" / "ca" / "certificate.pem").read_bytes())
    if not authority.not_valid_before_utc < datetime.now(UTC) < authority.not_valid_after_utc:
        pytest.skip("by this machine's clock, the certificates of the folders are not valid")


def version_of(database: Path) -> int:
    """Return the version of a database's layout."""
    with closing(sqlite3.connect(database)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def upgraded(folder: Path) -> Iterator[None]:
    """Start this version on the folders of a server and two agents."""
    fleet, enroll = free_port(), free_port()
    start = ["server", "start", "--dir", str(folder / "server"), "--fleet-port", str(fleet)]
    started = [Process([*start, "--enroll-port", str(enroll)], folder / "new-server.log")]
    for index in range(2):
        file = folder / f"client-{index}" / "client.toml"
        file.write_text(f'{file.read_text()}\n[server]\naddresses = ["localhost:{fleet}"]\n')
        command = ["client", "start", "--dir", str(file.parent)]
        started.append(Process(command, folder / f"new-{index}.log"))
    try:
        for process in started:
            process.start()
        yield
    finally:
        for process in reversed(started):
            process.stop()


def ended(folder: Path, run: int) -> dict[str, Any]:
    """Wait for a run's end and return its summary."""
    file = folder / "server" / "runs" / str(run) / "summary.json"
    wait_until(file.exists, f"the end of run {run}")
    return dict(json.loads(file.read_text()))


@pytest.mark.parametrize("release", COMMITS)
def test_folders_of_a_release(tmp_path: Path, release: str) -> None:
    """A run that the release began ends with the bytes of one that it had made to the end, and what
    it had released under privacy counts on, at the server and at the sites."""
    unpack(release, tmp_path)
    place = ("--dir", str(tmp_path / "server"))
    models = tmp_path / "server" / "runs"
    done = (models / "2" / "model.safetensors").read_bytes()
    lines = (models / "3" / "metrics.jsonl").read_text()
    assert version_of(tmp_path / "server" / "privacy.sqlite") == 1
    with upgraded(tmp_path):
        found = ended(tmp_path, 3)
        assert (found["status"], found["rounds"]) == ("finished", MAKE["ROUNDS"]), found
        assert (models / "3" / "model.safetensors").read_bytes() == done
        assert (models / "3" / "metrics.jsonl").read_text().startswith(lines)
        private = [f"--set={each}" for each in MAKE["PRIVATE"]]
        run = int(meadow("run", "submit", str(tmp_path / "exact"), *place, *private)["run"])
        assert ended(tmp_path, run)["status"] == "finished"

        def runs() -> list[str]:
            return [row["status"] for row in meadow("run", "list", *place)["rows"]]

        wait_until(lambda: runs() == ["finished"] * 4, "all runs are over")
    assert version_of(tmp_path / "server" / "privacy.sqlite") == 2
    with closing(sqlite3.connect(tmp_path / "server" / "privacy.sqlite")) as db:
        assert {row[0] for row in db.execute("SELECT run_id FROM asked WHERE law != 'none'")} == {
            1,
            run,
        }
    for index in range(2):
        assert version_of(tmp_path / f"client-{index}" / "agent.sqlite") == 3
        spent = meadow("client", "privacy", "--dir", str(tmp_path / f"client-{index}"))["runs"]
        counted = {each["run_id"]: each["rounds"] for each in spent}
        assert counted.items() >= {("1", 2), (str(run), 2)}
    meadow("server", "check", *place)


def has_commit(commit: str) -> bool:
    """Whether the history that is here goes back so far."""
    command = ["git", "-C", str(ROOT), "cat-file", "-e", f"{commit}^{{commit}}"]
    return (
        shutil.which("git") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.parametrize(
    "release",
    [
        pytest.param(
            release,
            marks=pytest.mark.skipif(not has_commit(commit), reason="a clone without history"),
        )
        for release, commit in COMMITS.items()
    ],
)
def test_rolling_upgrade(tmp_path: Path, release: str) -> None:
    """One agent, then the server are of this version, in the middle of a run, and serve the others; its
    model is that of a run of the release to which nothing happened."""
    code = tmp_path / "release"
    (code / "meadow").mkdir(parents=True)
    archive = tmp_path / "release.tar"
    command = ["git", "-C", str(ROOT), "archive", "-o", str(archive), COMMITS[release]]
    subprocess.run(command, check=True, capture_output=True)
    with tarfile.open(archive) as tar:
        tar.extractall(code / "meadow", filter="data")
    unpack(release, tmp_path)
    old = MAKE["OldRelease"](sys.executable, tmp_path, {**os.environ, "PYTHONPATH": str(code)})
    new = MAKE["OldRelease"](sys.executable, tmp_path)
    new.ports = old.ports
    for index in range(2):
        file = old.client(index) / "identity" / "client.json"
        address = f"localhost:{old.ports[0]}"
        file.write_text(json.dumps({**json.loads(file.read_text()), "fleet_address": address}))
    try:
        old.start_server()
        old.start_client(1)
        new.start_client(0)
        wait_until(lambda: old.rounds(3) >= 7, "rounds of an older server and a newer agent")
        old.end("client-1", signal.SIGTERM)
        old.end("server", signal.SIGTERM)
        assert not (old.server / "audit").exists(), "it was the release"
        new.start_server()
        old.start_client(1)  # an older agent, a newer server
        new.ends(3)
        assert old.model(3) == old.model(2)
    finally:
        for each in (old, new):
            each.close()
