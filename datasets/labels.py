"""Class names as numbers: the same ones at every site."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import DataError

__all__ = ["numbered"]


def numbered(
    values: ArrayLike, classes: Sequence[str] | None, *, where: str, what: str
) -> NDArray[np.generic]:
    """Return targets as numbers: named classes by their place in `classes`, numbers as they are.

    The names are never collected from the data: a site that lacks a class would number the others
    differently.

    Raises:
        DataError: there are names but no `classes`, or a name that is not among them.
    """
    array = np.asarray(values)
    if array.dtype.kind in "biuf" and not classes:
        return array
    names = [str(value) for value in array.tolist()]
    if not classes:
        some = ", ".join(repr(name) for name in sorted(set(names))[:4])
        raise DataError(
            f"{where}: {what} holds names ({some}); give classes=[...], the same list at "
            "every site, so that all number them alike"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    for row, name in enumerate(names, start=1):
        if name not in numbers:
            known = ", ".join(repr(each) for each in list(classes)[:8])
            raise DataError(
                f"{where}: {what} has {name!r} in row {row}, which is not among classes ({known})"
            )
    return np.array([numbers[name] for name in names], dtype=np.int64)
