"""The spool: files of tensors on their way, in folders that only the server names.

spool/<run>/down/               what clients fetch, written by the run worker
spool/<run>/up/<instruction>/   what clients sent, complete or in parts
spool/spare/                    what clients sent and nobody needs any more: the next is written over it
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Collection, Iterable
from pathlib import Path

from google.protobuf.message import DecodeError

from ..errors import LimitError, ProtocolError
from ..transport import fleet_pb2 as pb
from ..transport.blobs import blob_path, blobs_of, check_blob_id
from ..transport.codec import ENVELOPE_BYTES_MAX
from ..transport.durable import make_folder
from ..transport.spares import Spares

__all__ = ["BLOBS_PER_REPLY_MAX", "Spool"]

BLOBS_PER_REPLY_MAX = 64


class Spool:
    """Where blobs of tensors lie between the daemon and the run workers."""

    def __init__(self, folder: Path, *, blob_bytes_max: int) -> None:
        self._folder = folder
        self.spares = Spares(folder / "spare")
        self.blob_bytes_max = blob_bytes_max
        self._declared: dict[Path, dict[str, int]] = {}
        """How large the blobs of a reply will be: what is there yet says nothing."""
        self._lock = threading.Lock()
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    def outgoing(self, run_id: int) -> Path:
        """Return the folder of what clients fetch."""
        return self._folder / str(run_id) / "down"

    def replies(self, run_id: int, instruction_id: str) -> Path:
        """Return the folder of what one client sent for one instruction.

        Raises:
            ProtocolError: the id is no name that a server gives.
        """
        return self._folder / str(run_id) / "up" / check_blob_id(instruction_id)

    def make_room(self, run_id: int, instruction_id: str, blob: pb.Blob) -> Path:
        """Return the folder for one more blob of a reply.

        Raises:
            LimitError: with it the reply would be too many blobs, or too many bytes.
            ProtocolError: an id is none.
        """
        folder = self.replies(run_id, instruction_id)
        own = check_blob_id(blob.id)
        make_folder(folder)
        others = [path for path in folder.iterdir() if path.name.split(".")[0] != own]
        if len(others) > BLOBS_PER_REPLY_MAX:  # one may be the reply itself
            raise LimitError(f"a reply may have at most {BLOBS_PER_REPLY_MAX} blobs")
        with self._lock:
            declared = self._declared.setdefault(folder, {})
            sizes = {path.name.split(".")[0]: path.stat().st_size for path in others}
            sizes |= {name: size for name, size in declared.items() if name != own}
            total = blob.size_bytes + sum(sizes.values())
            if total > self.blob_bytes_max:
                raise LimitError(f"a reply of {total} bytes exceeds {self.blob_bytes_max}")
            declared[own] = blob.size_bytes
        return folder

    def check(self, run_id: int, instruction_id: str, envelope: pb.Envelope) -> None:
        """Make sure that every blob that a reply names has arrived in full.

        Raises:
            LimitError: the reply names too many blobs.
            ProtocolError: a blob is missing or has another size.
        """
        blobs = blobs_of(envelope)
        if len(blobs) > BLOBS_PER_REPLY_MAX:
            raise LimitError(f"a reply names {len(blobs)} blobs; at most {BLOBS_PER_REPLY_MAX}")
        folder = self.replies(run_id, instruction_id)
        for blob in blobs:
            file = blob_path(folder, blob.id)
            if not file.is_file() or file.stat().st_size != blob.size_bytes:
                raise ProtocolError(f"the reply names blob {blob.id!r}, which was not uploaded")

    def envelope(self, run_id: int, instruction_id: str, blob: pb.Blob) -> pb.Envelope:
        """Return the envelope of a reply that was uploaded as a file.

        Raises:
            ProtocolError: it is none, too large (LimitError), or was not uploaded.
        """
        if blob.size_bytes > ENVELOPE_BYTES_MAX:
            raise LimitError(f"a reply of {blob.size_bytes} bytes exceeds {ENVELOPE_BYTES_MAX}")
        path = blob_path(self.replies(run_id, instruction_id), blob.id)
        try:
            return pb.Envelope.FromString(path.read_bytes())
        except OSError:
            text = f"the reply is in the file {blob.id!r}, which was not uploaded"
            raise ProtocolError(text) from None
        except DecodeError as error:
            raise ProtocolError(f"the file of a reply holds none: {error}") from None

    def tidy(self, run_id: int, *, blobs: Collection[str], instructions: Collection[str]) -> None:
        """Delete all but these blobs for clients, and replies to all but these instructions."""
        kept = {blob_path(self.outgoing(run_id), blob_id).name for blob_id in blobs}
        make_folder(self.outgoing(run_id))
        for path in self.outgoing(run_id).iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)
        for folder in (self._folder / str(run_id) / "up").glob("*"):
            if folder.name not in instructions:
                shutil.rmtree(folder, ignore_errors=True)

    def forget(
        self,
        run_id: int,
        instruction_ids: Iterable[str],
        blob_ids: Iterable[str] = (),
        *,
        everything: bool,
    ) -> None:
        """Delete what clients sent for these instructions, and these blobs for clients; or all
        files of the run.

        Raises:
            ProtocolError: an id is none.
        """
        gone = [self.replies(run_id, id_) for id_ in instruction_ids]
        with self._lock:
            for folder in list(self._declared):
                if folder in gone or (everything and folder.parent.parent.name == str(run_id)):
                    del self._declared[folder]
        if everything:
            shutil.rmtree(self._folder / str(run_id), ignore_errors=True)
            self.spares.clear()
            return
        for folder in gone:
            self.spares.keep_all(folder)
        for id_ in blob_ids:  # perhaps a checkpoint too, which people copy: not to be written over
            blob_path(self.outgoing(run_id), id_).unlink(missing_ok=True)

    def count(self, run_id: int, *, sent: int = 0, received: int = 0) -> None:
        """Add to a run's traffic."""
        self._sent[run_id] = self._sent.get(run_id, 0) + sent
        self._received[run_id] = self._received.get(run_id, 0) + received

    def traffic(self, run_id: int) -> tuple[int, int]:
        """Return the bytes of tensors sent to and received from clients since the daemon began."""
        return self._sent.get(run_id, 0), self._received.get(run_id, 0)
