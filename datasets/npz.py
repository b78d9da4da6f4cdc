"""`npz`: NumPy's archives of arrays."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .pair import Pair, make_pair

__all__ = ["npz"]


def npz(
    path: Path | str,
    *,
    inputs: str = "x",
    targets: str = "y",
    groups: str | None = None,
    scale: float | None = None,
) -> Pair:
    """Return two arrays of an .npz file as a pair of checked tensors.

    `inputs`, `targets` and `groups` name arrays in the file; inputs are divided by `scale`.
    Nothing is unpickled: arrays of objects are refused.

    Raises:
        DataError: the file or an array cannot be read, or as `arrays`.
    """
    where = str(path)
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise DataError(f"{where}: is a single array, not an .npz archive of several")
        with opened as archive:
            named = [_array(archive, name, where) for name in (inputs, targets, groups) if name]
    except OSError as error:
        raise DataError(f"{where}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{where}: cannot be read as .npz without pickle: {error}; "
            "save it by np.savez from arrays of numbers"
        ) from None
    return make_pair(
        named[0], named[1], where=where, groups=named[2] if groups else None, scale=scale
    )


def _array(archive: np.lib.npyio.NpzFile, name: str, where: str) -> NDArray[np.generic]:
    if name not in archive:
        there = ", ".join(archive.files) or "nothing"
        raise DataError(f"{where}: has no array {name!r}; it has {there}")
    array: NDArray[np.generic] = archive[name]
    return array
