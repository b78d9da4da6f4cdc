"""What a monitoring system sees of a daemon: runs, rounds, sites, bytes, disk, certificates.

Labels are numbers of runs that are under way, and names of sites that are enrolled.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from typing import Any, Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ...config.server_config import StorageConfig
from ...transport.identity import read_certificate
from ...transport.metrics_page import MetricsPage, gauge
from ..journal.journal import Journal
from ..journal.run_table import RunRow
from ..notify.notifier import Notifier
from .agent_registry import AgentRegistry
from .server_dir import ServerFolder
from .storage import Storage
from .threads import JournalThread

__all__ = ["Monitoring"]

STATUSES: Final = ("arriving", "queued", "running", "finished", "stopped", "failed", "abandoned")
DURATION_BUCKETS: Final = (0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 14400)


class Monitoring:
    """Collects what the daemon does, and answers a scrape."""

    def __init__(
        self,
        server_folder: ServerFolder,
        journal: Journal,
        thread: JournalThread,
        agents: AgentRegistry,
        *,
        notifier: Notifier,
        storage: Storage,
        server_certificate: Callable[[], bytes],
    ) -> None:
        self._folder = server_folder
        self._journal, self._thread, self._agents = journal, thread, agents
        self._notifier, self._storage = notifier, storage
        self._server_certificate = server_certificate
        self._page = MetricsPage("meadow_info", "The version of the server", self._families)
        registry = self._page.registry
        self._runs: list[RunRow] = []
        self._pending = 0

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self._rounds = counter("meadow_rounds", "Rounds that were committed since the start")
        self._durations = Histogram(
            "meadow_round_duration_seconds",
            "How long committed rounds took",
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self._failures = counter("meadow_client_failures", "Clients that failed in a round")
        self._sent = counter("meadow_sent_bytes", "Bytes of tensors that were sent to clients")
        self._received = counter("meadow_received_bytes", "Bytes of tensors that clients sent")
        self._ended = counter("meadow_runs_ended", "Runs that ended since the start", "status")
        for status in ("finished", "stopped", "failed"):
            self._ended.labels(status)
        self._epsilon = Gauge(
            "meadow_run_epsilon", "What a run under way has spent", ["run"], registry=registry
        )

    def observe(self, run_id: int, kind: str, detail: str) -> None:
        """Count an event of a run."""
        if kind not in ("round_committed", "client_failed", "status"):
            return
        said = json.loads(detail)
        if kind == "client_failed":
            self._failures.inc()
        elif kind == "status":
            if said.get("status") in ("finished", "stopped", "failed"):
                self._ended.labels(said["status"]).inc()
                self._epsilon.remove_by_labels({"run": str(run_id)})
        else:
            self._rounds.inc()
            self._durations.observe(_number(said, "duration_s"))
            self._sent.inc(_number(said, "bytes_sent"))
            self._received.inc(_number(said, "bytes_received"))
            if isinstance(privacy := said.get("privacy"), dict):
                self._epsilon.labels(str(run_id)).set(_number(privacy, "epsilon"))

    async def scraped(self) -> tuple[bytes, str]:
        """Return the page in Prometheus' text format, and its media type."""
        self._runs = await self._thread(self._journal.runs.all)
        self._pending = await self._thread(self._journal.steps.pending)
        return await self._page.text()

    def _families(self) -> Iterable[Metric]:
        yield from self._of_runs()
        yield from self._of_sites()
        yield from self._of_receivers()
        disk = shutil.disk_usage(self._folder.folder)
        yield gauge("meadow_disk_free_bytes", "Free space of the server's disk", disk.free)
        yield gauge("meadow_disk_size_bytes", "Its size", disk.total)
        if (quota := (self._folder.config.storage or StorageConfig()).bytes_max) is not None:
            used = self._storage.used_bytes or 0
            yield gauge("meadow_storage_bytes", "What the server's folder holds", used)
            yield gauge("meadow_storage_bytes_max", "Its quota", quota)
        spool = [each.stat().st_size for each in _files(self._folder.folder / "spool")]
        yield gauge("meadow_spool_bytes", "Files of tensors in transit", sum(spool))
        ends = GaugeMetricFamily(
            "meadow_certificate_end_timestamp_seconds",
            "When a certificate of the server's ends",
            labels=["of"],
        )
        for name, pem in (
            ("authority", self._folder.authority.certificate_pem),
            ("server", self._server_certificate()),
        ):
            ends.add_metric([name], read_certificate(pem).not_valid_after_utc.timestamp())
        yield ends

    def _of_runs(self) -> Iterable[Metric]:
        counts = GaugeMetricFamily("meadow_runs", "Runs in the journal", labels=["status"])
        for status in STATUSES:
            counts.add_metric([status], sum(run.status == status for run in self._runs))
        yield counts
        done = GaugeMetricFamily("meadow_run_round", "Rounds of a run under way", labels=["run"])
        asked = GaugeMetricFamily("meadow_run_rounds", "How many it is to have", labels=["run"])
        for run in self._runs:
            if run.status in ("queued", "running"):
                done.add_metric([str(run.id)], run.round)
                asked.add_metric([str(run.id)], run.rounds)
        yield done
        yield asked
        yield gauge(
            "meadow_open_instructions", "Instructions that clients have not answered", self._pending
        )

    def _of_sites(self) -> Iterable[Metric]:
        sites = self._agents.sites()
        enrolled = [site for site in sites if site.serial and site.revoked_at_s is None]
        states = {
            "invited": sum(not site.serial and site.revoked_at_s is None for site in sites),
            "connected": self._agents.connected,
            "away": len(enrolled) - self._agents.connected,
            "revoked": sum(site.revoked_at_s is not None for site in sites),
        }
        counts = GaugeMetricFamily("meadow_sites", "Clients by state", labels=["state"])
        for state, count in states.items():
            counts.add_metric([state], max(0, count))
        yield counts
        there = GaugeMetricFamily(
            "meadow_site_connected", "Whether an enrolled client is connected", labels=["site"]
        )
        ends = GaugeMetricFamily(
            "meadow_site_certificate_end_timestamp_seconds",
            "When its certificate ends; it renews it while it is connected",
            labels=["site"],
        )
        for site in enrolled:
            there.add_metric([site.name], float(self._agents.get(site.node_id) is not None))
            ends.add_metric([site.name], site.certificate_until_s)
        yield there
        yield ends
        waiting = sum(link.outgoing.qsize() for link in self._agents.links())
        yield gauge("meadow_outgoing_messages", "Messages that wait for clients to read", waiting)

    def _of_receivers(self) -> Iterable[Metric]:
        found = self._notifier
        for name, text, counts in (
            ("meadow_notify_sent", "Notices that a receiver has taken", found.sent),
            ("meadow_notify_failures", "Tries that a receiver did not take", found.failed),
            ("meadow_notify_dropped", "Notices that were given up", found.dropped),
        ):
            counter = CounterMetricFamily(name, text, labels=["receiver"])
            for receiver, count in counts.items():
                counter.add_metric([receiver], count)
            yield counter
        waiting = GaugeMetricFamily(
            "meadow_notify_waiting", "Notices that wait for a receiver", labels=["receiver"]
        )
        for receiver, count in found.waiting.items():
            waiting.add_metric([receiver], count)
        yield waiting


def _number(row: dict[str, Any], key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and value >= 0 else 0.0


def _files(folder: Any) -> Iterable[Any]:
    return (path for path in folder.rglob("*") if path.is_file())
