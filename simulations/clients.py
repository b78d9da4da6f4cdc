"""The simulated clients of a run: who they are, and what each keeps between messages."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

from ..transport.content import pack_content, unpack_content
from ..transport.writer import BlobWriter

__all__ = ["SimulatedClients"]

RunConfig = Mapping[str, bool | int | float | str]


class SimulatedClients:
    """Clients with the node ids 1 to `count`; client i is site i - 1, or partition i - 1."""

    def __init__(self, count: int, *, run_id: int, run_config: RunConfig) -> None:
        self.count = count
        self.run_id = run_id
        self.run_config = dict(run_config)
        self._states: dict[int, RecordDict] = {}

    def context_of(self, node_id: int) -> Context:
        """Return a client's Context, its own copy of the state included.

        Raises:
            ValueError: there is no such client.
        """
        if not 1 <= node_id <= self.count:
            raise ValueError(f"there is no client {node_id}; there are 1 to {self.count}")
        node_config: dict[str, Any] = {
            "site-index": node_id - 1,
            "site-count": self.count,
            "partition-id": node_id - 1,
            "num-partitions": self.count,
        }
        return Context(
            run_id=self.run_id,
            node_id=node_id,
            node_config=node_config,
            state=copy.deepcopy(self._states.get(node_id, RecordDict())),
            run_config=dict(self.run_config),
        )

    def keep_state(self, node_id: int, state: RecordDict) -> None:
        """Keep what a client left in its Context."""
        if state or node_id in self._states:
            self._states[node_id] = state

    def save(self, folder: Path) -> dict[str, str]:
        """Write what clients keep to themselves: arrays into `folder`, the rest is returned."""
        kept = {node: state for node, state in self._states.items() if state}
        if kept:
            folder.mkdir(exist_ok=True)
        writer = BlobWriter(folder)
        return {str(node): pack_content(state, writer).hex() for node, state in kept.items()}

    def load(self, folder: Path, states: Mapping[str, str]) -> None:
        """Give clients back what `save` wrote, when a run goes on."""
        for node, packed in states.items():
            self._states[int(node)] = unpack_content(bytes.fromhex(packed), folder)
