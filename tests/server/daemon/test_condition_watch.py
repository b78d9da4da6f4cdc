"""The conditions of a server: each is recorded when it begins and when it ends, once."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meadow.config.server_config import FREE_BYTES_MIN, NotifyConfig, StorageConfig
from meadow.privacy.dp.accounting.events import GaussianEvent
from meadow.run.population_ledger import open_population
from meadow.server.daemon import condition_watch as module
from meadow.server.daemon.agent_registry import AgentLink, AgentRegistry
from meadow.server.daemon.condition_watch import ConditionWatch
from meadow.server.daemon.server_dir import ServerFolder
from meadow.server.journal.journal import Journal

DAY_S = 86400.0


class Watched:
    """A server with two enrolled sites, what its disk has, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.now_s = datetime.now(UTC).timestamp()
        self.home = ServerFolder.create(folder, host="localhost", now=datetime.now(UTC))
        self.journal = Journal(folder / "journal.sqlite")
        for name in ("a", "b"):
            self.journal.sites.invite(name, f"hash-{name}", now_s=0.0, expires_at_s=1e12)
            self.journal.sites.certify(name, name, shown=None, until_s=self.now_s + 7 * DAY_S)
        self.free_bytes = 10**12
        self.used_bytes: int | None = None
        self.registry()
        self.watch = self.started()

    def registry(self) -> None:
        """Make the registry of a daemon that has just started."""
        self.agents = AgentRegistry(
            self.journal.sites.all(), lease_s=60.0, clock=lambda: self.now_s
        )

    def started(self) -> ConditionWatch:
        """Return the watch of a daemon that has just started."""

        async def record(kind: str, detail: Mapping[str, Any]) -> None:
            self.journal.events.record(0, kind, json.dumps(detail), now_s=self.now_s)

        pem = self.home.authority.certificate_pem
        return ConditionWatch(
            self.home, self.journal, self.agents, server_certificate=lambda: pem,
            used_bytes=lambda: self.used_bytes, record=record, clock=lambda: self.now_s,
        )  # fmt: skip

    def connect(self, name: str) -> AgentLink:
        """Let a site connect."""
        site = self.agents.site(name)
        assert site is not None
        link = AgentLink(site.node_id, name)
        self.agents.add(link)
        return link

    def after(self, seconds: float) -> list[tuple[str, str]]:
        """Look after so many seconds; return the events since: kind, and what it is about."""
        before = self.journal.events.last()
        self.now_s += seconds
        asyncio.run(self.watch.look())
        rows = self.journal.events.after(0, after=before)
        return [(row["kind"], json.loads(row["json"]).get("about", "")) for row in rows]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """A server to look at."""
    made = Watched(tmp_path / "server")
    usage = SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=made.free_bytes))
    monkeypatch.setattr(module, "shutil", usage)
    with closing(made.journal):
        yield made


def test_a_site_that_goes_and_comes_back(watched: Watched) -> None:
    """It is gone after so many minutes without a connection, not before, and once."""
    watched.home.config = replace(watched.home.config, notify=NotifyConfig(site_gone_minutes=10))
    link = watched.connect("a")
    assert watched.after(0) == []
    assert watched.after(599) == []
    assert watched.after(1) == [("site_gone", "b")]
    assert watched.after(5000) == []
    watched.connect("b")
    assert watched.after(1) == [("site_back", "b")]

    async def leave() -> None:
        watched.agents.remove(link)

    asyncio.run(leave())
    assert watched.after(1) == []
    assert watched.after(600) == [("site_gone", "a")]


def test_a_short_absence_is_none(watched: Watched) -> None:
    """A site that is back in time was never gone."""
    watched.connect("a")
    watched.after(0)
    assert watched.after(500) == []
    link = watched.connect("b")
    assert watched.after(500) == []

    async def leave() -> None:
        watched.agents.remove(link)

    asyncio.run(leave())
    watched.after(5)
    assert watched.after(599) == []


def test_a_restart_neither_repeats_nor_forgets(watched: Watched) -> None:
    """What was gone stays gone, and what comes back afterwards is back."""
    watched.connect("a")
    watched.after(0)
    assert watched.after(600) == [("site_gone", "b")]
    watched.registry()
    watched.watch = watched.started()
    watched.connect("a")
    assert watched.after(1) == []
    assert watched.after(6000) == []
    watched.connect("b")
    assert watched.after(1) == [("site_back", "b")]
    watched.watch = watched.started()
    assert watched.after(1) == []


def test_a_revoked_site_is_not_missed(watched: Watched) -> None:
    """It was sent away."""
    watched.connect("a")
    watched.after(0)
    watched.journal.sites.revoke("b", now_s=watched.now_s)
    site = watched.journal.sites.get("b")
    assert site is not None
    watched.agents.update(site)
    assert watched.after(6000) == []


def test_certificates(watched: Watched) -> None:
    """A site's near its end, as of one that does not connect; and the authority's, in time."""
    for name in ("a", "b"):
        watched.connect(name)
    assert watched.after(5.9 * DAY_S) == []
    assert watched.after(0.2 * DAY_S) == [("certificate_ending", "a"), ("certificate_ending", "b")]
    watched.journal.sites.certify("a", "a2", shown=None, until_s=watched.now_s + 7 * DAY_S)
    site = watched.journal.sites.get("a")
    assert site is not None
    watched.agents.update(site)
    assert watched.after(1) == [("certificate_renewed", "a")]
    assert ("certificate_ending", "the authority") in watched.after(3560 * DAY_S)
    assert watched.after(50 * DAY_S) == []
    assert ("certificate_ending", "admin.json") in watched.after(10 * DAY_S)


def test_a_disk_that_fills(watched: Watched) -> None:
    """It is low below the bound, and no more when it has clearly more than that."""
    watched.connect("a")
    watched.connect("b")
    watched.free_bytes = 5_000_000_000
    assert watched.after(1) == []
    watched.free_bytes -= 1
    assert watched.after(1) == [("disk_low", "")]
    watched.free_bytes += 900_000_000
    assert watched.after(1) == []
    watched.free_bytes += 200_000_000
    assert watched.after(1) == [("disk_recovered", "")]


def test_a_quota_that_fills(watched: Watched) -> None:
    """It is near at 80 %, and no more when there is clearly less."""
    watched.connect("a")
    watched.connect("b")
    watched.home.config = replace(watched.home.config, storage=StorageConfig(bytes_max=10**9))
    watched.watch = watched.started()
    for used, events in (
        (800_000_000, []),
        (800_000_001, [("storage_near", "")]),
        (10**10, []),
        (700_000_000, []),
        (600_000_000, [("storage_recovered", "")]),
    ):
        watched.used_bytes = used
        assert watched.after(1) == events


def test_a_budget_that_is_nearly_spent(watched: Watched) -> None:
    """The epsilon of all runs is compared with the bound of server.toml whenever it has changed."""
    watched.connect("a")
    watched.connect("b")
    path = watched.home.folder / "server.toml"
    path.write_text("epsilon_max = 10.0\n" + path.read_text())
    watched.home = ServerFolder(watched.home.folder)
    watched.watch = watched.started()
    assert watched.after(1) == [], "no run has asked for anything"
    with closing(open_population(watched.home.folder)) as ledger:
        ledger.ask(1, "client", ((GaussianEvent(noise_multiplier=50.0), 1),))
    assert watched.after(1) == []
    with closing(open_population(watched.home.folder)) as ledger:
        epsilon = ledger.epsilon("client")
        count = 1
        while epsilon < 9.2:
            count *= 2
            ledger.settle(1, "client", ((GaussianEvent(noise_multiplier=50.0), count),))
            epsilon = ledger.epsilon("client")
    assert watched.after(1) == [("epsilon_near", "client")]
    assert watched.after(1) == []


def test_a_disk_is_looked_at(tmp_path: Path) -> None:
    """What the system says of the server's own disk."""
    watched = Watched(tmp_path / "server")
    with closing(watched.journal):
        low = shutil.disk_usage(tmp_path).free < FREE_BYTES_MIN
        assert (("disk_low", "") in watched.after(1)) == low
