"""Enrolment tokens, as the server's operator lists and revokes them."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from meadow.errors import IdentityError
from meadow.server.daemon.server_dir import ServerFolder
from meadow.server.journal.database import JournalDatabase
from meadow.server.journal.site_table import SiteTable

from .conftest import Meadow


def test_a_token_is_listed_until_it_is_revoked(meadow: Meadow, tmp_path: Path) -> None:
    """Unused tokens are listed with their expiry, expired ones as such; a revoked one is gone."""

    def server(*arguments: str, code: int = 0) -> Any:
        said = meadow("server", *arguments, "--dir", str(tmp_path / "s"), "--format", "json")
        assert said.code == code, said.err
        return json.loads(said.out.splitlines()[-1])

    server("init")
    made = server("token", "a", "--hours", "2")
    assert made["expires_at_s"] == pytest.approx(time.time() + 7200, abs=600)
    ServerFolder(tmp_path / "s").invite("b", hours=1.0, now_s=1e9)
    rows = server("tokens")
    assert [(row["client"], row["state"]) for row in rows] == [("a", "waiting"), ("b", "expired")]
    assert rows[0]["expires_at_s"] == made["expires_at_s"]
    server("revoke-token", "a")
    assert [row["client"] for row in server("tokens")] == ["b"]
    assert "meadow server tokens" in server("revoke-token", "a", code=1)["error"]


def test_a_token_of_an_older_journal_that_never_expires(meadow: Meadow, tmp_path: Path) -> None:
    """It is listed, so that it can be revoked, whatever moment it has."""
    assert meadow("server", "init", "--dir", str(tmp_path / "s")).code == 0
    with closing(JournalDatabase(tmp_path / "s" / "journal.sqlite")) as db:
        SiteTable(db).invite("a", "hash", now_s=0.0, expires_at_s=1e300)
    said = meadow("server", "tokens", "--dir", str(tmp_path / "s"))
    assert said.code == 0 and "9999-12-31" in said.out, said


def test_redeeming_one_voids_all_others_of_an_older_journal(tmp_path: Path) -> None:
    """A journal may have several tokens of one client from before newer ones voided older ones."""
    with closing(JournalDatabase(tmp_path / "journal.sqlite")) as db:
        sites = SiteTable(db)
        sites.invite("a", "first", now_s=0.0, expires_at_s=100.0)
        sites.invite("a", "second", now_s=0.0, expires_at_s=100.0)
        with db.transaction() as connection:
            connection.execute("UPDATE tokens SET used_at_s = NULL")
        sites.redeem("second", now_s=1.0)
        with pytest.raises(IdentityError, match="was used, revoked or replaced"):
            sites.redeem("first", now_s=2.0)
