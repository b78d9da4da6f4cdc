"""The page /metrics: counters and gauges in Prometheus' text format, read when it is scraped.

Names and units are Prometheus' conventions. What a peer sends is no label.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from .. import __version__

__all__ = ["MetricsPage", "gauge"]

Families = Callable[[], Iterable[Metric]]


class MetricsPage:
    """One process's metrics: its memory, CPU and open files, its version, and what is added.

    Attributes:
        registry: for counters that are incremented where something happens.
    """

    def __init__(self, info: str, text: str, families: Families) -> None:
        """`info` is the name of the metric with the version, `text` its help; `families` is called at each
        scrape, in a thread."""
        self.registry: Final = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        about = Gauge(info, text, ["version"], registry=self.registry)
        about.labels(__version__).set(1)
        self.registry.register(_AtScrape(families))

    async def text(self) -> tuple[bytes, str]:
        """Return the page, and its media type."""
        return await asyncio.to_thread(generate_latest, self.registry), CONTENT_TYPE_LATEST


class _AtScrape:
    """Collects at each scrape, and nothing before."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._families()


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return GaugeMetricFamily(name, text, value=value)
