"""The spool: what is forgotten is gone, and what is large is written over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meadow.errors import LimitError, UnreachableError
from meadow.server.daemon.spool import ABANDONED_S, Spool
from meadow.transport.blobs import blob_path
from meadow.transport.file_pool import SPARE_BYTES_MIN
from meadow.transport.fleet_pb2 import Blob

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
    fd = spool.file_pool.take(tmp_path / "spool" / "next", len(LARGE))
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


def test_a_client_has_a_quota_over_all_its_instructions(tmp_path: Path) -> None:
    """What it may declare for one it cannot declare for many; others are untouched by it."""
    spool = Spool(tmp_path / "spool", blob_bytes_max=100, client_bytes_max=150)
    spool.make_room(1, "i", Blob(id="a", size_bytes=100), node_id=5)
    with pytest.raises(UnreachableError, match="this client's quota"):
        spool.make_room(2, "j", Blob(id="b", size_bytes=51), node_id=5)
    spool.make_room(2, "j", Blob(id="b", size_bytes=50), node_id=5)
    spool.make_room(2, "k", Blob(id="a", size_bytes=100), node_id=6)
    spool.settle(1, "i", ())
    spool.make_room(2, "l", Blob(id="c", size_bytes=100), node_id=5)


def test_all_clients_together_have_a_quota(tmp_path: Path) -> None:
    """It is full for everybody until something is forgotten, by whatever way."""
    spool = Spool(tmp_path / "spool", blob_bytes_max=100, bytes_max=100)
    spool.make_room(1, "i", Blob(id="a", size_bytes=100))
    for run_id, forget in enumerate((
        lambda: spool.forget(1, ["i"], everything=False),
        lambda: spool.forget(2, [], everything=True),
        lambda: spool.give_up(3, "i", "a"),
        lambda: spool.settle(4, "i", ["other"]),
    ), 2):  # fmt: skip
        with pytest.raises(UnreachableError, match="the server's quota"):
            spool.make_room(run_id, "i", Blob(id="a", size_bytes=1), node_id=run_id)
        forget()
        spool.make_room(run_id, "i", Blob(id="a", size_bytes=100), node_id=run_id)


def test_what_a_reply_may_need_is_known_from_what_was_sent(tmp_path: Path) -> None:
    """A small model needs little; of nothing that was sent nothing is known."""
    spool = Spool(tmp_path / "spool", blob_bytes_max=1000, reply_bytes_min=10)
    for sent_bytes, most in ((0, 1000), (1, 10), (20, 160), (1000, 1000)):
        blob = Blob(id="a", size_bytes=most)
        spool.make_room(1, f"i{sent_bytes}", blob, sent_bytes=sent_bytes)
        blob.size_bytes += 1
        with pytest.raises(LimitError, match=f"exceeds {most}"):
            spool.make_room(1, f"i{sent_bytes}", blob, sent_bytes=sent_bytes)


def test_abandoned_uploads_are_deleted(tmp_path: Path) -> None:
    """A part that has not grown for long goes; one that grows stays, and so does a whole blob."""
    spool = Spool(tmp_path / "spool", blob_bytes_max=100)
    for name in ("old.part", "new.part", "whole.safetensors"):
        folder = spool.make_room(1, "i", Blob(id=name.split(".")[0], size_bytes=30))
        (folder / name).write_bytes(b"x")
        if name != "new.part":
            then_s = (folder / name).stat().st_mtime - ABANDONED_S - 60
            os.utime(folder / name, (then_s, then_s))
    with pytest.raises(LimitError):
        spool.make_room(1, "i", Blob(id="more", size_bytes=30))
    spool.drop_abandoned()
    assert files(spool, tmp_path) == ["1/up/i/new.part", "1/up/i/whole.safetensors"]
    spool.make_room(1, "i", Blob(id="more", size_bytes=30))
