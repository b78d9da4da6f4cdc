"""The simulated clients of a run: who they are, and what each keeps between messages."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

from ...machine.shared_folder import SharedFolder
from .state_bytes import pack_state, unpack_state
from .state_store import States, StateStore

__all__ = ["RunConfig", "SimulatedClients"]

RunConfig = Mapping[str, bool | int | float | str]


class SimulatedClients:
    """Clients with the node ids 1 to `count`; client i is site i - 1, or partition i - 1.

    Guarantees: memory does not grow with the number of clients that keep something: that is in
        `states_file`, or in a file of this process alone.
    """

    def __init__(
        self,
        count: int,
        *,
        run_id: int,
        run_config: RunConfig,
        states_file: Path | None = None,
        states: States | None = None,
        node_config: RunConfig | None = None,
    ) -> None:
        """Nothing is written before a client keeps something. `states` replaces the file.

        `node_config` has further entries for the node_config of every client's Context.
        """
        self.count = count
        self.run_id = run_id
        self.run_config = dict(run_config)
        self.node_config = dict(node_config or {})
        self._states_file = states_file
        self._states = states
        self._scratch_folder: SharedFolder | None = None
        self._disk_folder: SharedFolder | None = None

    def node_config_of(self, node_id: int) -> dict[str, Any]:
        """Return the node_config of a client's Context.

        Raises:
            ValueError: there is no such client.
        """
        if not 1 <= node_id <= self.count:
            raise ValueError(f"there is no client {node_id}; there are 1 to {self.count}")
        return {
            **self.node_config,
            "site-index": node_id - 1,
            "site-count": self.count,
            "partition-id": node_id - 1,
            "num-partitions": self.count,
        }

    def context_of(self, node_id: int) -> Context:
        """Return a client's Context, its own copy of the state included.

        Raises:
            ValueError: there is no such client.
        """
        context = self.stateless_context_of(node_id)
        context.state = self.state_of(node_id)
        return context

    def stateless_context_of(self, node_id: int) -> Context:
        """Return a client's Context, with no state as yet; raises as `context_of`."""
        return Context(
            run_id=self.run_id,
            node_id=node_id,
            node_config=self.node_config_of(node_id),
            state=RecordDict(),
            run_config=dict(self.run_config),
        )

    def state_of(self, node_id: int) -> RecordDict:
        """Return the client's own copy of what it keeps."""
        kept = self.packed_state(node_id)
        return unpack_state(kept, self._scratch()) if kept else RecordDict()

    def keep_state(self, node_id: int, state: RecordDict) -> None:
        """Keep what a client left in its Context.

        Raises:
            ProtocolError: something in it cannot be stored.
            StoreError: the disk is full or fails.
        """
        kept = self.packed_state(node_id)
        if state or kept is not None:
            packed = pack_state(state, self._scratch())
            if packed != kept:
                self.keep_packed_state(node_id, packed)

    def packed_state(self, node_id: int) -> bytes | None:
        """Return what a client keeps as `pack_state` has it, None if it never kept anything."""
        return None if self._states is None else self._states.get(node_id)

    def keep_packed_state(self, node_id: int, packed: bytes) -> None:
        """Keep a state that `pack_state` made."""
        if self._states is None:
            self._states = self._store()
        self._states.put(node_id, packed)

    def no_client_state(self) -> bytes:
        """Return what `packed_state` is of a client that keeps nothing any more."""
        return pack_state(RecordDict(), self._scratch())

    def save(self) -> dict[str, str]:
        """Make durable what clients keep; returns what `load` needs, empty if it is nothing.

        Raises:
            StoreError: the disk is full or fails; what was saved before is intact.
        """
        return self._states.save() if isinstance(self._states, StateStore) else {}

    def load(self, saved: Mapping[str, str]) -> None:
        """Give clients back what `save` kept, when a run goes on; {} takes everything from them.

        Raises:
            StoreError: it is not there any more.
        """
        store = self._states if isinstance(self._states, StateStore) else self._store()
        store.load(saved)
        self._states = store

    def close(self) -> None:
        """Close the file of states; what was saved stays."""
        if isinstance(self._states, StateStore):
            self._states.close()
        for folder in (self._scratch_folder, self._disk_folder):
            if folder is not None:
                folder.close()

    def _store(self) -> StateStore:
        if self._states_file is not None:
            return StateStore(self._states_file)
        self._disk_folder = SharedFolder(Path(tempfile.gettempdir()))
        return StateStore(self._disk_folder.path / "clients.sqlite")

    def _scratch(self) -> Path:
        """Return a folder for the files that a state is made of, for a moment."""
        if self._scratch_folder is None:
            self._scratch_folder = SharedFolder()
        return self._scratch_folder.path
