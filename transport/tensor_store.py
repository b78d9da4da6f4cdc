"""A file of tensors that is filled in place, by whoever computes them block by block.

Memory is a window: pages that were written are given back to the kernel, which keeps them for the disk.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StoreError
from ..flower.messages import StoredParams
from .durable import Writeback, sync_folder
from .header import build_header
from .tensors import TensorFile, holds

__all__ = ["TensorStore"]


class TensorStore:
    """A new file for tensors of given forms, as mapped memory.

    Attributes:
        flats: the tensors' values, one after the other, to be written to; each is flat.
    """

    def __init__(self, path: Path, forms: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]):
        """Make the file, with all of its disk space.

        Raises:
            ProtocolError: a file cannot hold such a tensor.
            StoreError: the disk has no room, or does not take the file.
        """
        header = build_header(forms, {})
        counts = [math.prod(shape) for _, shape in forms.values()]
        self._dtypes = [dtype for dtype, _ in forms.values()]
        self._begins: list[int] = []
        self._path, self._size = path, len(header)
        for dtype, count in zip(self._dtypes, counts, strict=True):
            self._begins.append(self._size)
            self._size += count * dtype.itemsize
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                # all of it now: a full disk would kill whoever writes to mapped memory
                os.posix_fallocate(self._fd, 0, self._size)
                os.pwrite(self._fd, header, 0)
                self._map = mmap.mmap(self._fd, self._size)
            except BaseException:
                os.close(self._fd)
                path.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise StoreError(
                f"{path} cannot be written: {error.strerror or error}; it takes {self._size} bytes"
            ) from error
        self.flats: list[NDArray[Any]] = [
            np.frombuffer(self._map, dtype, count, begin) if count else np.empty(0, dtype)
            for dtype, count, begin in zip(self._dtypes, counts, self._begins, strict=True)
        ]

    @staticmethod
    def fits(dtypes: list[np.dtype[Any]]) -> bool:
        """Say whether a file holds these dtypes as they are in memory."""
        return all(holds(dtype) and dtype.byteorder != ">" for dtype in dtypes)

    def wrote(self, first: tuple[int, int], last: tuple[int, int]) -> None:
        """Give back the memory between two places: (tensor, its real values up to there)."""
        begin, end = (
            self._begins[t] + at * _real_bytes(self._dtypes[t]) for t, at in (first, last)
        )
        begin -= begin % mmap.PAGESIZE
        if end > begin:
            self._map.madvise(mmap.MADV_DONTNEED, begin, min(end, self._size) - begin)
            Writeback(self._fd, begin).wrote(end)

    def finish(self, forms: Mapping[str, object]) -> StoredParams:
        """Make the file durable and return its tensors, in the order of `forms`.

        Raises:
            StoreError: the disk fails.
        """
        self.flats.clear()
        try:
            os.fsync(self._fd)
            self._map.close()
            sync_folder(self._path.parent)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error.strerror}") from error
        finally:
            os.close(self._fd)
        tensors = TensorFile.open(self._path, size_max=self._size).tensors
        return StoredParams({name: tensors[name] for name in forms})


def _real_bytes(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize // (2 if dtype.kind == "c" else 1)
