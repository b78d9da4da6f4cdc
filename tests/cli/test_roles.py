"""Roles and the audit log, as the server's operator sees them."""

from __future__ import annotations

import json
import pwd
from datetime import UTC, datetime
from os import getuid
from pathlib import Path
from typing import Any

import pytest

from meadow.server.daemon.check import check_server_folder
from meadow.server.daemon.server_dir import ServerFolder
from meadow.transport.identity import identity_of

from .conftest import Meadow


@pytest.fixture
def folder(meadow: Meadow, tmp_path: Path) -> Path:
    """Return a new server's folder."""
    assert meadow("server", "init", "--dir", str(tmp_path / "s")).code == 0
    return tmp_path / "s"


def test_roles_are_given_listed_and_revoked(
    meadow: Meadow, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several of each, one by one; a file is secret, and only its own certificate is in it."""
    monkeypatch.chdir(tmp_path)

    def role(*arguments: str, code: int = 0) -> Any:
        said = meadow("server", "role", *arguments, "--dir", str(folder), "--format", "json")
        assert said.code == code, said.err
        return json.loads(said.out.splitlines()[-1])

    assert role("list") == []
    for name, word in (("ann", "viewer"), ("bea", "viewer"), ("cy", "administrator")):
        made = role("add", name, "--role", word)
        assert made == {"name": name, "role": word, "file": f"{name}.json"}
        fields = json.loads((tmp_path / made["file"]).read_text())
        assert (tmp_path / made["file"]).stat().st_mode & 0o777 == 0o600
        assert fields.keys() == json.loads((folder / "admin.json").read_text()).keys()
        identity = identity_of(fields["certificate_pem"].encode())
        assert (identity.name, identity.role) == (name, {"administrator": "admin"}.get(word, word))
    assert not list(folder.rglob("*-key.pem"))
    assert [(row["name"], row["role"]) for row in role("list")] == [
        ("ann", "viewer"), ("bea", "viewer"), ("cy", "administrator"),
    ]  # fmt: skip
    role("revoke", "ann")
    assert [row["name"] for row in role("list")] == ["bea", "cy"]
    assert "role list" in role("revoke", "ann", code=1)["error"]
    assert "renew-admin" in role("revoke", "admin", code=1)["error"]
    assert "has a role already" in role("add", "bea", "--role", "viewer", code=2)["error"]
    assert "ann.json exists" in role("add", "ann", "--role", "viewer", code=2)["error"]
    assert "renew-admin" in role("add", "admin", "--role", "viewer", code=2)["error"]
    assert "cannot be a name" in role("add", "../a", "--role", "viewer", code=1)["error"]
    assert meadow("server", "role", "add", "x", "--role", "client", "--dir", str(folder)).code == 2
    (folder / "ca" / "roles" / "bea").write_text("{")
    found = {each.subject: each.text for each in check_server_folder(ServerFolder(folder))}
    assert "role revoke bea" in found["identity"]
    role("revoke", "bea")
    assert [row["name"] for row in role("list")] == ["cy"]


def test_what_commands_do_is_in_the_log(meadow: Meadow, folder: Path) -> None:
    """With the user of the machine, and without secrets; the log is verified by a command."""

    def audit(*arguments: str, code: int = 0) -> Any:
        said = meadow("server", "audit", *arguments, "--dir", str(folder), "--format", "json")
        assert said.code == code, said.err
        return json.loads(said.out.splitlines()[-1])

    assert audit() == [] and audit("--verify")["head"] is None
    said = meadow("server", "token", "a", "--dir", str(folder), "--format", "json")
    meadow("server", "revoke-token", "a", "--dir", str(folder))
    ServerFolder(folder).renew_admin(datetime.now(UTC))
    rows = audit()
    assert [(row["call"], row["outcome"]) for row in rows] == [
        (f"server {command}", outcome)
        for command in ("token", "revoke-token", "renew-admin")
        for outcome in ("begun", "ok")
    ]
    assert {(row["who"], row["role"]) for row in rows} == {
        (pwd.getpwuid(getuid()).pw_name, "local")
    }
    text = "".join(path.read_text() for path in (folder / "audit").iterdir())
    assert json.loads(said.out)["token"] not in text
    assert audit("--last", "1") == rows[-1:]
    found = audit("--verify")
    assert found["ok"] and found["head"].startswith("6:")
    assert audit("--head", found["head"])["ok"]
    assert "a head is" in meadow("server", "audit", "--head", "x", "--dir", str(folder)).err
    (path,) = (folder / "audit").glob("*.jsonl")
    path.write_text(path.read_text().replace('"client":"a"', '"client":"b"', 1))
    assert "line 1" in audit("--verify", code=1)["problem"]
    assert "damaged" in meadow("server", "audit", "--verify", "--dir", str(folder)).out
    findings = {each.subject: each.ok for each in check_server_folder(ServerFolder(folder))}
    assert findings == {"identity": True, "audit": False, "journal": True}


def test_a_folder_from_before_roles(meadow: Meadow, folder: Path) -> None:
    """It has no log and no roles; its administrator stays, and both begin with the next action."""
    assert not (folder / "audit").exists() and not (folder / "ca" / "roles").exists()
    home = ServerFolder(folder)
    identity = identity_of(home.admin().certificate_pem)
    home.roles.check(identity, datetime.now(UTC))
    assert meadow("server", "check", "--dir", str(folder)).code == 0


def test_a_restored_log_goes_on(meadow: Meadow, folder: Path, tmp_path: Path) -> None:
    """A backup has the log and the roles; restoring is an action, and a later head shows it."""
    at = ("--dir", str(folder))
    out = str(tmp_path / "ann.json")
    assert meadow("server", "role", "add", "ann", "--role", "viewer", "--out", out, *at).code == 0
    assert meadow("server", "backup", str(tmp_path / "b.tar"), *at).code == 0
    assert meadow("server", "role", "revoke", "ann", *at).code == 0
    later = ServerFolder(folder).audit_log().verify().head
    said = meadow("server", "restore", str(tmp_path / "b.tar"), "--dir", str(tmp_path / "new"))
    assert said.code == 0 and "role revoke" in said.out
    home = ServerFolder(tmp_path / "new")
    assert [entry.name for entry in home.roles.entries()] == ["ann"]
    assert [line["call"] for line in home.audit_log().lines(2)] == ["server restore"] * 2
    assert not home.audit_log().verify().problem and home.audit_log().verify(later).problem
