"""Files are written over only when nobody reads them, and never show what was in them before."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meadow.errors import StoreError
from meadow.transport import file_pool as module
from meadow.transport.file_pool import SPARE_BYTES_MIN, FilePool, open_held
from meadow.transport.tensors import TensorFile, write_tensors

SIZE = SPARE_BYTES_MIN
OLD, NEW = b"o" * SIZE, b"n" * SIZE


@pytest.fixture
def file_pool(tmp_path: Path) -> FilePool:
    """Make an empty folder of spare files."""
    return FilePool(tmp_path / "spare")


def file_of(path: Path, data: bytes = OLD) -> Path:
    """Make a file."""
    path.write_bytes(data)
    return path


def test_a_file_is_written_over(tmp_path: Path, file_pool: FilePool) -> None:
    """What was put aside is the same file under another name."""
    path = file_of(tmp_path / "a")
    inode = path.stat().st_ino
    file_pool.keep(path)
    assert not path.exists()
    fd = file_pool.take(tmp_path / "b", SIZE)
    assert fd is not None
    assert os.fstat(fd).st_ino == inode == (tmp_path / "b").stat().st_ino
    os.close(fd)
    assert file_pool.take(tmp_path / "c", SIZE) is None
    assert not (tmp_path / "c").exists()


def test_a_longer_file_is_cut(tmp_path: Path, file_pool: FilePool) -> None:
    """The file is never longer than what is written over it."""
    file_pool.keep(file_of(tmp_path / "a", OLD * 2))
    fd = file_pool.take(tmp_path / "b", SIZE + 5)
    assert fd is not None
    assert os.fstat(fd).st_size == SIZE + 5
    os.close(fd)


def test_small_files_are_made_anew(tmp_path: Path, file_pool: FilePool) -> None:
    """A small file is deleted, and for a small one nothing is taken."""
    file_pool.keep(file_of(tmp_path / "small", OLD[1:]))
    assert not (tmp_path / "small").exists()
    file_pool.keep(file_of(tmp_path / "a"))
    assert file_pool.take(tmp_path / "b", SIZE - 1) is None
    file_pool.keep(tmp_path / "missing")


def test_bounds(tmp_path: Path, file_pool: FilePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are never more files, or bytes, than the bounds say."""
    monkeypatch.setattr(module, "POOLED_FILES_MAX", 3)
    for number in range(5):
        file_pool.keep(file_of(tmp_path / str(number)))
    assert len(os.listdir(tmp_path / "spare")) == 3
    file_pool.clear()
    assert os.listdir(tmp_path / "spare") == []
    monkeypatch.setattr(module, "SPARES_BYTES_MAX", 2 * SIZE)
    for number in range(5):
        file_pool.keep(file_of(tmp_path / str(number)))
    assert len(os.listdir(tmp_path / "spare")) == 2
    assert sorted(os.listdir(tmp_path)) == ["spare"]


def test_whoever_reads_keeps_what_he_reads(tmp_path: Path, file_pool: FilePool) -> None:
    """An open file is not written over, nor one that is only mapped any more."""
    for mapped_only in (False, True):
        fd = open_held(file_of(tmp_path / "a"))
        mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        if mapped_only:
            os.close(fd)
        file_pool.keep(tmp_path / "a")
        assert file_pool.take(tmp_path / "b", SIZE) is None
        assert mapped[:] == OLD
        mapped.close()
        if not mapped_only:
            os.close(fd)


def test_a_tensor_keeps_its_file(tmp_path: Path, file_pool: FilePool) -> None:
    """Params that are in use, mapped or not, are never changed by a later round's."""
    old, new = np.full(SIZE, 1, np.uint8), np.full(SIZE, 2, np.uint8)
    write_tensors(tmp_path / "a", {"x": old}, fsync=False)
    tensor = TensorFile.open(tmp_path / "a", size_max=2 * SIZE).tensors["x"]
    values = tensor.numpy()
    del tensor
    file_pool.keep(tmp_path / "a")
    write_tensors(tmp_path / "b", {"x": new}, fsync=False, file_pool=file_pool)
    assert (values == 1).all()
    del values
    file_pool.keep(tmp_path / "b")
    inode = next((tmp_path / "spare").iterdir()).stat().st_ino
    write_tensors(tmp_path / "c", {"x": new[:-9]}, fsync=True, file_pool=file_pool)
    assert (tmp_path / "c").stat().st_ino == inode
    found = TensorFile.open(tmp_path / "c", size_max=2 * SIZE).tensors["x"].numpy()
    assert (found == 2).all()
    assert found.shape == (SIZE - 9,)


def test_a_linked_file_is_left_alone(tmp_path: Path, file_pool: FilePool) -> None:
    """A file with a second name is somebody else's too."""
    os.link(file_of(tmp_path / "a"), tmp_path / "linked")
    file_pool.keep(tmp_path / "a")
    assert file_pool.take(tmp_path / "b", SIZE) is None
    assert (tmp_path / "linked").read_bytes() == OLD


def test_a_link_is_not_followed(tmp_path: Path, file_pool: FilePool) -> None:
    """A symbolic link among the spare files leads nowhere."""
    file_of(tmp_path / "a")
    (tmp_path / "spare").mkdir()
    (tmp_path / "spare" / "link").symlink_to(tmp_path / "a")
    assert file_pool.take(tmp_path / "b", SIZE) is None
    assert (tmp_path / "a").read_bytes() == OLD


def test_another_process_reads(tmp_path: Path, file_pool: FilePool) -> None:
    """The lock holds between processes, and goes with the process."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom meadow.transport.file_pool import open_held\n"
        "fd = open_held(Path(sys.argv[1]))\nprint('held', flush=True)\nsys.stdin.read()"
    )
    for reads in (True, False):
        path = file_of(tmp_path / "a")
        reader = subprocess.Popen(
            [sys.executable, "-c", code, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert reader.stdout is not None
        assert reader.stdout.readline() == "held\n"
        if not reads:
            reader.kill()
            reader.communicate()
        file_pool.keep(path)
        fd = file_pool.take(tmp_path / "b", SIZE)
        assert (fd is None) == reads
        if fd is not None:
            os.close(fd)
        reader.communicate()


def test_a_file_that_is_being_written_over_is_not_read(tmp_path: Path, file_pool: FilePool) -> None:
    """A reader who comes too late finds no file, and not another's bytes."""
    file_pool.keep(file_of(tmp_path / "a"))
    fd = file_pool.take(tmp_path / "b", SIZE)
    assert fd is not None
    with pytest.raises(StoreError, match="cannot be opened"):
        TensorFile.open(tmp_path / "a", size_max=SIZE)
    with pytest.raises(FileNotFoundError):
        open_held(tmp_path / "a")
    os.close(fd)


def test_a_replaced_file_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is replaced while it is opened is opened once more, under the same name."""
    path, locked = file_of(tmp_path / "a"), module._shared

    def replace(fd: int) -> bool:
        monkeypatch.setattr(module, "_shared", locked)
        os.replace(file_of(tmp_path / "new", NEW), path)
        return locked(fd)

    monkeypatch.setattr(module, "_shared", replace)
    fd = open_held(path)
    assert os.read(fd, 3) == NEW[:3]
    os.close(fd)


def test_another_disk(tmp_path: Path) -> None:
    """A file that cannot be moved to the spare ones is deleted."""
    (tmp_path / "spare").write_text("no folder")
    file_pool = FilePool(tmp_path / "spare")
    file_pool.keep(file_of(tmp_path / "a"))
    assert not (tmp_path / "a").exists()
    assert file_pool.take(tmp_path / "b", SIZE) is None


def test_a_whole_folder(tmp_path: Path, file_pool: FilePool) -> None:
    """Its large files are kept and the rest is gone; what is in the way does not raise."""
    folder = tmp_path / "reply"
    (folder / "0-folder").mkdir(parents=True)
    file_of(folder / "large")
    file_of(folder / "small", b"s")
    file_pool.keep_all(folder)
    file_pool.keep_all(folder)
    assert sorted(os.listdir(tmp_path)) == ["spare"]
    assert os.listdir(tmp_path / "spare") == ["large"]
