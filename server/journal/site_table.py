"""The table of sites: invited, enrolled and revoked clients, and their tokens."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from ...errors import IdentityError
from ...transport.relaying import LEAF_BITS
from .database import JournalDatabase

__all__ = ["SiteRow", "SiteTable", "TokenRow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRow:
    """One enrolled or invited client."""

    node_id: int
    name: str
    serial: str | None
    previous_serial: str | None
    certificate_until_s: float
    connected: bool
    seen_at_s: float
    revoked_at_s: float | None
    version: str
    tags: frozenset[str] = frozenset()
    """The administrator's tags of the site; a run may select sites by tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """A token that was neither redeemed nor revoked; a client has at most one."""

    name: str
    expires_at_s: float


_SITES = (
    "SELECT sites.*, (SELECT group_concat(tag, ' ') FROM site_tags"
    " WHERE site_tags.node_id = sites.node_id) AS tags FROM sites"
)


class SiteTable:
    """Clients by name and node id, and their enrolment tokens."""

    def __init__(self, db: JournalDatabase) -> None:
        self._db = db

    def invite(self, name: str, token_hash: str, *, now_s: float, expires_at_s: float) -> int:
        """Store a one-time token for `name` and return its node id, which never changes.

        The client's older tokens become void.
        """
        with self._db.transaction() as db:
            db.execute("INSERT OR IGNORE INTO sites (name) VALUES (?)", (name,))
            _void_tokens(db, name, now_s=now_s)
            db.execute(
                "INSERT INTO tokens (hash, name, expires_at_s) VALUES (?, ?, ?)",
                (token_hash, name, expires_at_s),
            )
            row = db.execute("SELECT node_id FROM sites WHERE name = ?", (name,)).fetchone()
        return int(row["node_id"])

    def number_from(self, first: int) -> bool:
        """Number new sites from `first` on. False, without a change, if there are sites with smaller
        numbers, or far larger ones."""
        with self._db.transaction() as db:
            (least, most) = db.execute("SELECT min(node_id), max(node_id) FROM sites").fetchone()
            if least is not None:
                return bool(first <= least and most < first + (1 << LEAF_BITS))
            db.execute("DELETE FROM sqlite_sequence WHERE name = 'sites'")
            db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('sites', ?)", (first - 1,))
        return True

    def redeem(self, token_hash: str, *, now_s: float) -> SiteRow:
        """Use up a token and return its site.

        Raises:
            IdentityError: the token is unknown, used, void or expired. The peer gets the same
                text for all of these; this one is for the server's log.
        """
        with self._db.transaction() as db:
            row = db.execute("SELECT * FROM tokens WHERE hash = ?", (token_hash,)).fetchone()
            if row is None:
                raise IdentityError("the enrolment token is unknown")
            if row["used_at_s"] is not None:
                raise IdentityError(
                    f"the enrolment token of {row['name']} was used, revoked or replaced"
                )
            if row["expires_at_s"] < now_s:
                raise IdentityError(f"the enrolment token of {row['name']} has expired")
            _void_tokens(db, row["name"], now_s=now_s)  # also older ones, of an earlier version
            db.execute(
                "UPDATE sites SET revoked_at_s = NULL, serial = NULL, previous_serial = NULL"
                " WHERE name = ?",
                (row["name"],),
            )
            site = db.execute(f"{_SITES} WHERE name = ?", (row["name"],)).fetchone()
        return _site(site)

    def certify(self, name: str, serial: str, *, shown: str | None, until_s: float) -> None:
        """Bind a new certificate to a site; of its older ones, only `shown` stays valid."""
        with self._db.transaction() as db:
            db.execute(
                "UPDATE sites SET previous_serial = ?, serial = ?, certificate_until_s = ?"
                " WHERE name = ?",
                (shown, serial, until_s, name),
            )

    def all(self) -> list[SiteRow]:
        """Return all sites by node id."""
        return [_site(row) for row in self._db.rows(f"{_SITES} ORDER BY node_id")]

    def get(self, name: str) -> SiteRow | None:
        """Return a site by name, None if there is no such site."""
        rows = self._db.rows(f"{_SITES} WHERE name = ?", (name,))
        return _site(rows[0]) if rows else None

    def seen(self, node_id: int, *, connected: bool, now_s: float, version: str = "") -> None:
        """Record that a site connected or went away."""
        with self._db.transaction() as db:
            db.execute(
                "UPDATE sites SET connected = ?, seen_at_s = ?,"
                " version = CASE WHEN ? = '' THEN version ELSE ? END WHERE node_id = ?",
                (int(connected), now_s, version, version, node_id),
            )

    def tag(self, name: str, tags: Collection[str]) -> SiteRow | None:
        """Replace a site's tags. None if there is no such site."""
        if (site := self.get(name)) is None:
            return None
        with self._db.transaction() as db:
            db.execute("DELETE FROM site_tags WHERE node_id = ?", (site.node_id,))
            rows = [(site.node_id, tag) for tag in sorted(set(tags))]
            db.executemany("INSERT INTO site_tags (node_id, tag) VALUES (?, ?)", rows)
        return self.get(name)

    def slow_lines(self) -> dict[int, int]:
        """Return the rates in bytes per second of the lines that were measured slow, by node id."""
        rows = self._db.sealed("slow_lines", "ORDER BY node_id")
        return {row["node_id"]: row["bytes_per_s"] for row in rows}

    def set_line(self, node_id: int, slow_bytes_per_s: int) -> None:
        """Record that a site's line is slow, and its rate; with 0, that it is not."""
        with self._db.transaction() as db:
            db.execute("DELETE FROM slow_lines WHERE node_id = ?", (node_id,))
            if slow_bytes_per_s:
                db.execute(
                    "INSERT INTO slow_lines (node_id, bytes_per_s) VALUES (?, ?)",
                    (node_id, slow_bytes_per_s),
                )

    def revoke(self, name: str, *, now_s: float) -> bool:
        """Revoke a site and its unused tokens. False if there is no such site."""
        with self._db.transaction() as db:
            changed = db.execute(
                "UPDATE sites SET revoked_at_s = ? WHERE name = ?", (now_s, name)
            ).rowcount
            _void_tokens(db, name, now_s=now_s)
        return changed > 0

    def tokens(self) -> list[TokenRow]:
        """Return the tokens that were neither redeemed nor voided, ordered by client."""
        rows = self._db.rows(
            "SELECT name, max(expires_at_s) AS expires_at_s FROM tokens"
            " WHERE used_at_s IS NULL GROUP BY name ORDER BY name"
        )
        return [TokenRow(**row) for row in rows]

    def revoke_token(self, name: str, *, now_s: float) -> bool:
        """Void a client's token; its certificates stay valid. False if it has no token."""
        with self._db.transaction() as db:
            return _void_tokens(db, name, now_s=now_s)


def _void_tokens(db: sqlite3.Connection, name: str, *, now_s: float) -> bool:
    voided = db.execute(
        "UPDATE tokens SET used_at_s = ? WHERE name = ? AND used_at_s IS NULL", (now_s, name)
    )
    return voided.rowcount > 0


def _site(row: sqlite3.Row) -> SiteRow:
    values = dict(row)
    values["connected"] = bool(values["connected"])
    values["tags"] = frozenset((values["tags"] or "").split())
    return SiteRow(**values)
