"""`meadow server invite` and `meadow client join`: from a name to an enrolled client."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from daemon_house import House, in_a_house

from meadow.server.daemon.server_dir import ServerFolder
from meadow.transport.invitation import Invitation

from .conftest import Meadow


@pytest.fixture
def folder(meadow: Meadow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new server's folder, from another one."""
    assert meadow("server", "init", "--dir", str(tmp_path / "s"), "--host", "fl.example").code == 0
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "s"


def test_one_file(meadow: Meadow, folder: Path) -> None:
    """It is readable for its owner only, holds all that is needed, and is never written over."""
    said = meadow("server", "invite", "hospital-a", "--dir", str(folder), "--tag", "eu")
    assert said.code == 0 and "meadow client join hospital-a.invitation" in said.out
    file = Path("hospital-a.invitation")
    assert file.stat().st_mode & 0o777 == 0o600
    invited = Invitation.from_text(file.read_text())
    assert (invited.client, invited.server) == ("hospital-a", "fl.example:9444")
    assert abs(invited.expires_at_s - time.time() - 86400) < 60
    again = meadow("server", "invite", "hospital-a", "--dir", str(folder))
    assert again.code == 2 and "exists" in again.err
    assert invited.token not in said.out
    log = json.dumps(ServerFolder(folder).audit_log().lines(100))
    assert "hospital-a" in log and invited.token not in log
    line = meadow("server", "invite", "b", "--dir", str(folder), "--line", "--hours", "1")
    assert Invitation.from_text(line.out).client == "b" and not Path("b.invitation").exists()


def test_many_from_a_table(meadow: Meadow, folder: Path) -> None:
    """Each has its file, hours and tags."""
    table = "name,hours,tags\nsite-1,,eu gpu\nsite-2,48,\n"
    Path("sites.csv").write_text("\ufeff" + table)
    said = meadow("server", "invite", "--csv", "sites.csv", "--dir", str(folder), "--out", "made/x")
    assert said.code == 0, said.err
    files = sorted(Path("made/x").iterdir())
    assert [file.name for file in files] == ["site-1.invitation", "site-2.invitation"]
    two = Invitation.from_text(files[1].read_text())
    assert abs(two.expires_at_s - time.time() - 48 * 3600) < 60
    waiting = [row.name for row in ServerFolder(folder).tokens()]
    assert waiting == ["site-1", "site-2"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("site\na\n", "unknown column 'site'"),
        ("hours\n1\n", "no column name"),
        ("name\n", "names no client"),
        ("", "no column name"),
        ("name\nok\nNot Ok\n", "line 3:"),
        ("name\na\nb\na\n", "line 4: a is there twice"),
        ("name,hours\na,soon\n", "line 2:"),
        ("name,hours\na,-1\n", "line 2: hours must be"),
        ("name,hours\na,nan\n", "line 2: hours must be"),
        ("name,tags\na,EU\n", "line 2: 'EU' is not a tag"),
        ("name\na,b\n", "line 2: more values than columns"),
        ("name,name\na,b\n", "the column name is there twice"),
        (f"name\nok\n{'a' * 200_000}\n", "field larger than"),
        (f"{'n' * 200_000}\n", "field larger than"),
        ("name,hours\nok,1\nlong,8785\n", "line 3: hours must be"),
    ],
)
def test_a_wrong_table(meadow: Meadow, folder: Path, table: str, said: str) -> None:
    """The line is named, and nobody is invited."""
    Path("sites.csv").write_text(table)
    found = meadow("server", "invite", "--csv", "sites.csv", "--dir", str(folder))
    assert found.code == 2 and said in found.err
    assert ServerFolder(folder).tokens() == [] and [*Path().iterdir()] == [Path("sites.csv")]


def test_wrong_calls(meadow: Meadow, folder: Path) -> None:
    """Each has a sentence."""
    at = ("--dir", str(folder))
    for arguments in (
        ("server", "invite", *at),
        ("server", "invite", "a", "--csv", "x.csv", *at),
        ("server", "invite", "--csv", "x.csv", "--line", *at),
        ("server", "invite", "--csv", "none.csv", *at),
        ("server", "invite", "a"),
        ("client", "join", "none.invitation", "--dir", "c"),
    ):
        assert meadow(*arguments).code == 2, arguments
    Path("x.invitation").write_text("hello")
    joined = meadow("client", "join", "x.invitation", "--dir", "c")
    assert joined.code == 2 and "no invitation" in joined.err and not Path("c").exists()


@pytest.mark.parametrize("hours", ["8785", "1e9", "1e300", "inf", "nan"])
def test_too_long(meadow: Meadow, folder: Path, hours: str) -> None:
    """An invitation and a token are valid for a year at most: nobody lists a moment that no calendar has."""
    for call in (("invite", "a"), ("token", "a")):
        said = meadow("server", *call, "--hours", hours, "--dir", str(folder))
        assert said.code == 2 and "hours must be" in said.err, said
    assert ServerFolder(folder).tokens() == [] and [*Path().iterdir()] == []


def test_joining(tmp_path: Path) -> None:
    """By a file and by a pasted line, made in the folder and over the network; each once."""

    def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "meadow", *arguments], input=given, cwd=tmp_path,
            capture_output=True, check=False, text=True, timeout=60,
        )  # fmt: skip

    def seen(house: House) -> None:
        folder = str(house.home.folder)
        assert run("server", "invite", "a", "--dir", folder, "--tag", "eu").returncode == 0
        joined = run("client", "join", "a.invitation", "--dir", "a")
        assert joined.returncode == 0 and "enrolled as a " in joined.stdout, joined.stderr
        again = run("client", "join", "a.invitation", "--dir", "a2")
        assert again.returncode == 1 and "token" in again.stderr
        admin = str(house.home.folder / "admin.json")
        (tmp_path / "admin.json").write_text(
            json.dumps(json.loads(Path(admin).read_text()) | {"address": house.addresses["fleet"]})
        )
        line = run("server", "invite", "b", "--admin", "admin.json", "--tag", "us", "--line").stdout
        joined = run("client", "join", "-", "--dir", "b", given=line)
        assert joined.returncode == 0 and "enrolled as b " in joined.stdout, joined.stderr
        sites = {each.name: sorted(each.tags) for each in house.daemon._journal.sites.all()}
        assert sites == {"a": ["eu"], "b": ["us"]}
        assert {each.name for each in house.daemon._agents.sites() if each.serial} == {"a", "b"}

    async def scenario(house: House) -> None:
        await asyncio.to_thread(seen, house)

    in_a_house(tmp_path / "server", scenario)
