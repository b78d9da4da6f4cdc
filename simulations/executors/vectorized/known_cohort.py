"""A cohort's data as they were laid out last: many runs draw the same cohort in every round."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..site_data import SiteSamples
from .cohort_data import CohortData

__all__ = ["KnownCohort", "Loaded"]

Loaded = list[tuple[int, SiteSamples]]
"""Clients with their data, the ones with the most samples first."""


class KnownCohort:
    """Remembers one cohort, and forgets it for another.

    Samples that a client's own code makes are made anew each time.
    """

    def __init__(self) -> None:
        self._clients: Sequence[int] = ()
        self._loaded: Loaded = []
        self._laid: dict[tuple[int, ...], CohortData] = {}

    def find(self, clients: Sequence[int]) -> Loaded | None:
        """Return the data of exactly these clients, if they are remembered."""
        return self._loaded if self._clients and self._clients == tuple(clients) else None

    def remember(self, clients: Sequence[int], loaded: Loaded) -> None:
        """Take a cohort's data."""
        self._clients, self._loaded = tuple(clients), loaded
        self._laid = {}

    def lay(self, chunk: Loaded, *, device: torch.device, epochs: int) -> CohortData:
        """Return the training data of some of the cohort, side by side."""
        clients = tuple(client for client, _ in chunk)
        known = self._laid.get(clients)
        if known is None:
            parts = [data.train for _, data in chunk]
            known = CohortData.of(parts, device=device, epochs=epochs, seeds=clients)
            if known.is_view:
                self._laid[clients] = known
        return known
