"""The spool: what is forgotten is gone, and what is large is written over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meadow.errors import LimitError
from meadow.server.spool import Spool
from meadow.transport.blobs import blob_path
from meadow.transport.fleet_pb2 import Blob
from meadow.transport.spares import SPARE_BYTES_MIN

RUN = 7
LARGE = bytes(SPARE_BYTES_MIN)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    """Make a spool with a large reply, a small one, and two blobs for clients."""
    spool = Spool(tmp_path / "spool", blob_bytes_max=4 * SPARE_BYTES_MIN)
    for id_, data in (("i1", LARGE), ("i2", b"small")):
        folder = spool.make_room(RUN, id_, Blob(id="b", size_bytes=len(data)))
        blob_path(folder, "b").write_bytes(data)
    spool.outgoing(RUN).mkdir()
    for blob_id in ("old", "new"):
        blob_path(spool.outgoing(RUN), blob_id).write_bytes(LARGE)
    return spool


def files(spool: Spool, tmp_path: Path) -> list[str]:
    """List everything in the spool."""
    paths = (tmp_path / "spool").rglob("*")
    return sorted(str(path.relative_to(tmp_path / "spool")) for path in paths if path.is_file())


def test_a_group_is_forgotten(spool: Spool, tmp_path: Path) -> None:
    """A large reply is put aside; a model, which may be a checkpoint too, is not."""
    checkpoint = tmp_path / "checkpoint"
    os.link(blob_path(spool.outgoing(RUN), "old"), checkpoint)
    spool.forget(RUN, ["i1", "i2", "never"], ["old", "never"], everything=False)
    assert files(spool, tmp_path) == ["7/down/new.safetensors", "spare/b.safetensors"]
    fd = spool.spares.take(tmp_path / "spool" / "next", len(LARGE))
    assert fd is not None
    os.write(fd, b"x" * len(LARGE))
    os.close(fd)
    assert checkpoint.read_bytes() == LARGE


def test_a_run_is_forgotten(spool: Spool, tmp_path: Path) -> None:
    """Nothing is left of it, and nothing for others to write over."""
    spool.forget(RUN, ["i1"], everything=False)
    spool.forget(RUN, [], everything=True)
    assert files(spool, tmp_path) == []


def test_a_reply_is_bounded_however_its_parts_are_named(spool: Spool, tmp_path: Path) -> None:
    """A part that is being written over counts like any other, and a blob's own does not."""
    over = spool.replies(RUN, "i1") / "c.0.over"
    over.write_bytes(bytes(2 * SPARE_BYTES_MIN))
    spool.make_room(RUN, "i1", Blob(id="c", size_bytes=3 * SPARE_BYTES_MIN))
    with pytest.raises(LimitError, match="exceeds"):
        spool.make_room(RUN, "i1", Blob(id="d", size_bytes=2 * SPARE_BYTES_MIN))


def test_declared_sizes_count(tmp_path: Path) -> None:
    """Uploads that are open count with what they declared, not with what is there of them."""
    spool = Spool(tmp_path / "spool", blob_bytes_max=100)
    spool.make_room(1, "i", Blob(id="a", size_bytes=60))
    with pytest.raises(LimitError, match="exceeds 100"):
        spool.make_room(1, "i", Blob(id="b", size_bytes=60))
    spool.make_room(1, "i", Blob(id="a", size_bytes=60))
    spool.forget(1, ["i"], everything=False)
    spool.make_room(1, "i", Blob(id="b", size_bytes=60))
