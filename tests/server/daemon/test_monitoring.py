"""/metrics: what Prometheus reads of a server, and what the alerts and the dashboard ask for."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from meadow.config.server_config import StorageConfig
from meadow.errors import ConfigError
from meadow.server.daemon.agent_registry import AgentLink, AgentRegistry
from meadow.server.daemon.monitoring import Monitoring
from meadow.server.daemon.server_dir import ServerFolder
from meadow.server.daemon.storage import Storage
from meadow.server.daemon.threads import JournalThread
from meadow.server.journal.journal import Journal
from meadow.server.notify.notifier import Notifier

DEPLOY = Path(__file__).parents[3] / "deploy"
ROUND = {"round": 2, "duration_s": 2.5, "bytes_sent": 1000, "bytes_received": 700}
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def home(tmp_path: Path) -> ServerFolder:
    """A server with a client of each state, a run under way and one that failed."""
    home = ServerFolder.create(tmp_path / "server", host="localhost", now=datetime.now(UTC))
    home.config = replace(home.config, storage=StorageConfig(bytes_max=10**9))
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        for name in ("here", "gone", "new", "out"):
            journal.sites.invite(name, f"hash-{name}", now_s=0.0, expires_at_s=1e12)
        for name in ("here", "gone", "out"):
            journal.sites.certify(name, f"serial-{name}", shown=None, until_s=5e9)
        journal.sites.revoke("out", now_s=1.0)
        run = journal.runs.submit("app", "x", "[]", now_s=0.0)
        journal.runs.begin(run, "app", "x")
        journal.runs.ready(run, rounds=9, ready=b"")
        journal.steps.open(
            run, "1/train/0", "1", quorum=1, deadline_s=1.0,
            instructions=[("a", 1, b"e"), ("b", 2, b"e")],
        )  # fmt: skip
        failed = journal.runs.submit("app", "x", "[]", now_s=0.0)
        journal.runs.status(failed, "failed", cause="c", now_s=1.0)
    (home.folder / "spool" / "1").mkdir()
    (home.folder / "spool" / "1" / "blob").write_bytes(bytes(5000))
    return home


@pytest.fixture
def monitoring(home: ServerFolder) -> Iterator[Monitoring]:
    """What the daemon would answer with; "here" is connected, with two messages to read."""
    with closing(Journal(home.folder / "journal.sqlite")) as journal:
        thread = JournalThread(journal)
        agents = AgentRegistry(journal.sites.all(), lease_s=60.0, clock=lambda: 0.0)
        site = agents.site("here")
        assert site is not None
        link = AgentLink(site.node_id, "here")
        agents.add(link)
        for _ in range(2):
            link.outgoing.put_nowait(None)
        pem = home.authority.certificate_pem
        listener = SimpleNamespace(name="url", place="there")
        notifier = Notifier(
            journal, thread.patiently, [listener], events=(), folder=home.folder, server="s",
            server_id="s", record=AsyncMock(), clock=lambda: 0.0,
        )  # fmt: skip
        notifier.sent["url"], notifier.waiting["url"] = 4, 2
        made = Monitoring(
            home, journal, thread, agents, notifier=notifier,
            storage=Storage(home, journal, thread, AsyncMock(), clock=lambda: 0.0),
            server_certificate=lambda: pem,
        )  # fmt: skip
        yield made
        thread.close()


def scrape(monitoring: Monitoring) -> Samples:
    """Return the samples by name and labels."""
    page, kind = asyncio.run(monitoring.scraped())
    assert kind.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_what_is_there_now(monitoring: Monitoring) -> None:
    """Sites, runs, instructions, messages, disk and certificates, as they are when it is asked."""
    found = scrape(monitoring)
    sites = {dict(k[1])["state"]: v for k, v in found.items() if k[0] == "meadow_sites"}
    assert sites == {"invited": 1, "connected": 1, "away": 1, "revoked": 1}
    there = {dict(k[1])["site"]: v for k, v in found.items() if k[0] == "meadow_site_connected"}
    assert there == {"here": 1, "gone": 0}, "neither who was invited nor who was revoked"
    assert found["meadow_runs", (("status", "queued"),)] == 1
    assert found["meadow_runs", (("status", "failed"),)] == 1
    assert found["meadow_run_round", (("run", "1"),)] == 0
    assert found["meadow_run_rounds", (("run", "1"),)] == 9
    assert ("meadow_run_rounds", (("run", "2"),)) not in found
    assert found["meadow_open_instructions", ()] == 2
    assert found["meadow_outgoing_messages", ()] == 2
    assert found["meadow_spool_bytes", ()] == 5000
    assert found["meadow_storage_bytes", ()] == 0, "it was not measured yet"
    assert found["meadow_storage_bytes_max", ()] == 1e9
    assert found["meadow_notify_sent_total", (("receiver", "url"),)] == 4
    assert found["meadow_notify_failures_total", (("receiver", "url"),)] == 0
    assert found["meadow_notify_waiting", (("receiver", "url"),)] == 2
    assert 0 < found["meadow_disk_free_bytes", ()] < found["meadow_disk_size_bytes", ()]
    assert found["process_resident_memory_bytes", ()] > 1e7
    ends = found["meadow_certificate_end_timestamp_seconds", (("of", "authority"),)]
    assert ends > datetime.now(UTC).timestamp() + 3000 * 86400


def test_what_happened_since_the_start(monitoring: Monitoring) -> None:
    """Rounds, their durations and bytes, failures and ends; a run that ended has no epsilon here."""
    private = {**ROUND, "privacy": {"epsilon": 1.5, "delta": 1e-5}}
    for kind, detail in (
        ("round_committed", ROUND),
        ("round_committed", private),
        ("round_committed", {"round": 3}),
        ("client_failed", {"client": 1, "reason": "x"}),
        ("traceback", {"text": "x"}),
    ):
        monitoring.observe(1, kind, json.dumps(detail))
    found = scrape(monitoring)
    assert found["meadow_rounds_total", ()] == 3
    assert found["meadow_round_duration_seconds_sum", ()] == 5.0
    assert found["meadow_round_duration_seconds_bucket", (("le", "3.0"),)] == 3
    assert found["meadow_sent_bytes_total", ()] == 2000
    assert found["meadow_received_bytes_total", ()] == 1400
    assert found["meadow_client_failures_total", ()] == 1
    assert found["meadow_run_epsilon", (("run", "1"),)] == 1.5
    assert found["meadow_runs_ended_total", (("status", "failed"),)] == 0
    monitoring.observe(1, "status", json.dumps({"status": "running"}))
    monitoring.observe(1, "status", json.dumps({"status": "failed", "cause": "c"}))
    monitoring.observe(2, "status", json.dumps({"status": "finished", "cause": ""}))
    found = scrape(monitoring)
    assert found["meadow_runs_ended_total", (("status", "failed"),)] == 1
    assert found["meadow_runs_ended_total", (("status", "finished"),)] == 1
    assert not [key for key in found if key[0] == "meadow_run_epsilon"]


def test_alerts_and_dashboard_ask_for_what_there_is(monitoring: Monitoring) -> None:
    """Every name in their expressions is on the page."""
    monitoring.observe(1, "round_committed", json.dumps({**ROUND, "privacy": {"epsilon": 1.0}}))
    known = {name for name, _ in scrape(monitoring)} | {"up"}
    rules = yaml.safe_load((DEPLOY / "prometheus" / "meadow.rules.yml").read_text())
    asked = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((DEPLOY / "grafana" / "meadow.json").read_text())
    asked += [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]
    for expression in asked:
        names = set(re.findall(r"\b(meadow_\w+|process_\w+|up)\b", expression))
        assert names and names <= known, expression
    if (promtool := shutil.which("promtool")) is not None:
        for kind, file in (("rules", "meadow.rules.yml"), ("config", "prometheus.yml")):
            command = [promtool, "check", kind, str(DEPLOY / "prometheus" / file)]
            assert subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_a_wrong_address_is_named(tmp_path: Path) -> None:
    """When server.toml is read."""
    home = ServerFolder.create(tmp_path / "server", host="localhost", now=datetime.now(UTC))
    with (home.folder / "server.toml").open("a") as file:
        file.write('metrics_address = "9464"\n')
    with pytest.raises(ConfigError, match="metrics_address must be HOST:PORT"):
        ServerFolder(home.folder)
