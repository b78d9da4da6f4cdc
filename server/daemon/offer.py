"""The offer of a run's app to clients that do not have its version."""

from __future__ import annotations

import zlib
from pathlib import Path

from ...apps.folder import pack
from ...errors import AppError
from ...transport import fleet_pb2 as pb
from ...transport.app_signature import SIGNATURE_FILE
from ...transport.blobs import blob_path
from ...transport.durable import make_folder, write_file
from ..journal.run_table import RunRow

__all__ = ["OFFER_FOLDER", "pack_offer"]

OFFER_FOLDER = "offer"


def pack_offer(app_dir: Path, folder: Path, run: RunRow) -> pb.App:
    """Write an app's archive into `folder`; return its description for instructions.

    Raises:
        AppError: the app's files cannot be packed.
    """
    try:
        data = pack(app_dir)
        archive = pb.Blob(id=f"app-{run.sha256[:32]}", size_bytes=len(data), crc32=zlib.crc32(data))
        make_folder(folder)
        write_file(blob_path(folder, archive.id), data, fsync=False)
        signature = folder / SIGNATURE_FILE
        signed = signature.read_bytes() if signature.exists() else b""
    except OSError as error:
        raise AppError(f"{folder}: {error.strerror or error}") from error
    return pb.App(name=run.app, sha256=run.sha256, archive=archive, signature=signed)
