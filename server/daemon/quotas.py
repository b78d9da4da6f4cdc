"""Disk quotas of clients' replies: of one reply, of one client, and of all together.

A blob counts with its declared size, from its first byte until it is deleted.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import LimitError, UnreachableError
from ...transport import fleet_pb2 as pb
from ...transport.blobs import blobs_of, packed_bytes_in

__all__ = ["REPLY_TIMES_MAX", "Quotas", "tensor_bytes_of"]

REPLY_TIMES_MAX = 8
"""Bound of a reply's size, relative to the tensors sent to the client: these have at least one byte
per value, and a secure sum, the largest reply, has eight."""


def tensor_bytes_of(envelope: pb.Envelope) -> int:
    """Return the size of a message's tensors, in files and inside the message, in bytes."""
    return sum(blob.size_bytes for blob in blobs_of(envelope)) + packed_bytes_in(envelope)


@dataclass(slots=True)
class _Room:
    node_id: int
    sizes: dict[str, int] = field(default_factory=dict)


class Quotas:
    """Counts the bytes of each reply's blobs; a reply is identified by its folder. Thread-safe."""

    def __init__(self, *, client_bytes_max: int, bytes_max: int) -> None:
        self._client_bytes_max = client_bytes_max
        self._bytes_max = bytes_max
        self._rooms: dict[Path, _Room] = {}
        self._clients: Counter[int] = Counter()
        self._lock = threading.Lock()

    def take(
        self,
        folder: Path,
        blob: pb.Blob,
        *,
        node_id: int,
        stored: Mapping[str, int],
        reply_bytes_max: int,
    ) -> None:
        """Reserve space for one more blob of a reply.

        `stored` has the sizes of the reply's blobs that are on disk already, by id, in bytes.

        Raises:
            LimitError: the reply would exceed its own bound or a client's quota.
            UnreachableError: a quota is used up until other replies are deleted.
        """
        with self._lock:
            room = self._rooms.get(folder) or _Room(node_id)
            sizes = {**stored, **room.sizes, blob.id: blob.size_bytes}
            reply = sum(sizes.values())
            if reply > reply_bytes_max:
                raise LimitError(f"a reply of {reply} bytes exceeds {reply_bytes_max}")
            if reply > min(self._client_bytes_max, self._bytes_max):
                raise LimitError(f"a reply of {reply} bytes exceeds the quota of a client")
            more = reply - sum(room.sizes.values())
            if self._clients[room.node_id] + more > self._client_bytes_max:
                raise UnreachableError("this client's quota is used up by its other replies")
            if self._clients.total() + more > self._bytes_max:
                raise UnreachableError("the server's quota for replies is used up; try again")
            room.sizes = sizes
            self._rooms[folder] = room
            self._clients[room.node_id] += more

    def keep_only(self, folder: Path, blob_ids: Collection[str]) -> None:
        """Release the space of all blobs of a reply except these."""
        with self._lock:
            room = self._rooms.get(folder)
            if room is None:
                return
            gone = sum(size for id_, size in room.sizes.items() if id_ not in blob_ids)
            room.sizes = {id_: size for id_, size in room.sizes.items() if id_ in blob_ids}
            self._clients[room.node_id] -= gone
            if not self._clients[room.node_id]:
                del self._clients[room.node_id]
            if not room.sizes:
                del self._rooms[folder]

    def drop(self, folder: Path, blob_id: str) -> None:
        """Release the space of one blob of a reply."""
        room = self._rooms.get(folder)
        if room is not None:
            self.keep_only(folder, set(room.sizes) - {blob_id})

    def folders(self) -> list[Path]:
        """Return the folders of all replies with reserved space."""
        with self._lock:
            return list(self._rooms)
