"""The spool: files of tensors in transit, in folders that only the server names.

spool/<run>/down/               blobs for clients, written by the run worker
spool/<run>/up/<instruction>/   blobs from clients, complete or in parts
spool/spare/                    unneeded blobs from clients, to be overwritten by later ones
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from google.protobuf.message import DecodeError

from ...config.server_config import CLIENT_BYTES_MAX, REPLY_BYTES_MIN, SPOOL_BYTES_MAX
from ...errors import LimitError, ProtocolError
from ...transport import fleet_pb2 as pb
from ...transport.blobs import blob_path, blobs_of, check_blob_id
from ...transport.codec import ENVELOPE_BYTES_MAX
from ...transport.durable import make_folder
from ...transport.file_pool import FilePool
from .quotas import REPLY_TIMES_MAX, Quotas

__all__ = ["ABANDONED_S", "BLOBS_PER_REPLY_MAX", "Spool"]

BLOBS_PER_REPLY_MAX = 64
ABANDONED_S = 3600.0
"""Age after which an interrupted upload is deleted."""


class Spool:
    """The folder of blobs of tensors, shared by the daemon and the run workers."""

    def __init__(
        self,
        folder: Path,
        *,
        blob_bytes_max: int,
        reply_bytes_min: int = REPLY_BYTES_MIN,
        client_bytes_max: int = CLIENT_BYTES_MAX,
        bytes_max: int = SPOOL_BYTES_MAX,
    ) -> None:
        """The bounds are those of `ServerConfig`; `bytes_max` is its `spool_bytes_max`."""
        self._folder = folder
        self.file_pool = FilePool(folder / "spare")
        self.blob_bytes_max = blob_bytes_max
        self._reply_bytes_min = reply_bytes_min
        self._quotas = Quotas(client_bytes_max=client_bytes_max, bytes_max=bytes_max)
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    def outgoing(self, run_id: int) -> Path:
        """Return the folder of a run's blobs for clients."""
        return self._folder / str(run_id) / "down"

    def replies(self, run_id: int, instruction_id: str) -> Path:
        """Return the folder of one client's reply to one instruction.

        Raises:
            ProtocolError: the id is malformed.
        """
        return self._folder / str(run_id) / "up" / check_blob_id(instruction_id)

    def reply_bytes_max(self, sent_bytes: int) -> int:
        """Return the bound of a reply's size, for `sent_bytes` of tensors sent to the client.

        Where no tensors were sent, only `blob_bytes_max` bounds it.
        """
        if sent_bytes == 0:
            return self.blob_bytes_max
        needed = max(self._reply_bytes_min, REPLY_TIMES_MAX * sent_bytes)
        return min(self.blob_bytes_max, needed)

    def make_room(
        self,
        run_id: int,
        instruction_id: str,
        blob: pb.Blob,
        *,
        node_id: int = 0,
        sent_bytes: int = 0,
    ) -> Path:
        """Reserve space for one more blob of a client's reply, and return the reply's folder.

        Raises:
            LimitError: the reply would have too many blobs, or too many bytes.
            UnreachableError: a quota is used up at present.
            ProtocolError: an id is malformed.
        """
        folder = self.replies(run_id, instruction_id)
        own = check_blob_id(blob.id)
        make_folder(folder)
        others = [path for path in folder.iterdir() if path.name.split(".")[0] != own]
        if len(others) > BLOBS_PER_REPLY_MAX:  # one more may be the reply's envelope
            raise LimitError(f"a reply may have at most {BLOBS_PER_REPLY_MAX} blobs")
        self._quotas.take(
            folder,
            blob,
            node_id=node_id,
            stored={path.name.split(".")[0]: path.stat().st_size for path in others},
            reply_bytes_max=self.reply_bytes_max(sent_bytes),
        )
        return folder

    def settle(self, run_id: int, instruction_id: str, named: Collection[str]) -> None:
        """Keep only the `named` blobs of an instruction that is answered or closed."""
        folder = self.replies(run_id, instruction_id)
        self._quotas.keep_only(folder, named)
        with suppress(FileNotFoundError):
            for path in list(folder.iterdir()):
                if path.name.split(".")[0] not in named:
                    path.unlink(missing_ok=True)

    def give_up(self, run_id: int, instruction_id: str, blob_id: str) -> None:
        """Delete a blob whose upload ended after its instruction was closed."""
        folder = self.replies(run_id, instruction_id)
        self._quotas.drop(folder, blob_id)
        for path in folder.glob(f"{check_blob_id(blob_id)}.*"):
            path.unlink(missing_ok=True)
        if not self.outgoing(run_id).exists():
            shutil.rmtree(self._folder / str(run_id), ignore_errors=True)

    def drop_abandoned(self) -> None:
        """Delete the parts of uploads that were interrupted more than `ABANDONED_S` ago."""
        for folder in self._quotas.folders():
            for path in list(folder.glob("*.part")) + list(folder.glob("*.over")):
                with suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > ABANDONED_S:
                        path.unlink()
                        self._quotas.drop(folder, path.name.split(".")[0])

    def check(self, run_id: int, instruction_id: str, envelope: pb.Envelope) -> None:
        """Check that every blob that a reply names has arrived in full.

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
            LimitError: the envelope is too large.
            ProtocolError: it is malformed, or was not uploaded.
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
            raise ProtocolError(f"the file of a reply is malformed: {error}") from None

    def tidy(self, run_id: int, *, blobs: Collection[str], instructions: Collection[str]) -> None:
        """Delete all blobs for clients but these, and the replies to all instructions but these."""
        needed = {blob_path(self.outgoing(run_id), blob_id).name for blob_id in blobs}
        make_folder(self.outgoing(run_id))
        for path in self.outgoing(run_id).iterdir():
            if path.name not in needed:
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
        """Delete the replies to these instructions and these blobs for clients, or everything.

        Raises:
            ProtocolError: an id is malformed.
        """
        gone = [self.replies(run_id, id_) for id_ in instruction_ids]
        if everything:
            run = self._folder / str(run_id) / "up"
            gone += [folder for folder in self._quotas.folders() if folder.parent == run]
        for folder in gone:
            self._quotas.keep_only(folder, ())
        if everything:
            shutil.rmtree(self._folder / str(run_id), ignore_errors=True)
            self.file_pool.clear()
            return
        for folder in gone:
            self.file_pool.keep_all(folder)
        for id_ in blob_ids:  # may be linked as a checkpoint: deleted, not overwritten
            blob_path(self.outgoing(run_id), id_).unlink(missing_ok=True)

    def count(self, run_id: int, *, sent: int = 0, received: int = 0) -> None:
        """Add to a run's traffic."""
        self._sent[run_id] = self._sent.get(run_id, 0) + sent
        self._received[run_id] = self._received.get(run_id, 0) + received

    def traffic(self, run_id: int) -> tuple[int, int]:
        """Return the bytes of tensors sent to and received from clients since the daemon began."""
        return self._sent.get(run_id, 0), self._received.get(run_id, 0)
