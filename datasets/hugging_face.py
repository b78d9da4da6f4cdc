"""`hugging_face`: the rows of a `datasets.Dataset` that is loaded already; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from ..errors import DataError
from .labels import numbered
from .pair import groups_of, inputs_of, targets_of
from .pixels import Color, alike, color_of, pixels

__all__ = ["HuggingFaceRows", "hugging_face"]


@runtime_checkable
class Rows(Protocol):
    """The part of `datasets.Dataset`'s interface that is used."""

    column_names: Sequence[str]

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any) -> Any:
        """Return row 3, the rows [3, 5] by column, or the column "label"."""


class HuggingFaceRows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows as (inputs, target), each read on access; several in one read.

    Attributes:
        targets: all targets, (rows,), for `Site.share_of(data.targets, groups=data.groups)`.
        groups: which rows belong together, (rows,), read-only, if there is a column for it.
    """

    def __init__(
        self,
        rows: Rows,
        inputs: Sequence[str],
        targets: torch.Tensor,
        *,
        groups: NDArray[np.generic] | None,
        color: Color | None,
        scale: float | None,
    ) -> None:
        self.targets, self.groups = targets, groups
        self._rows, self._inputs = rows, tuple(inputs)
        self._scale = scale
        self._color = color
        self._first: Color | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        places = [range(len(self))[int(index)] for index in indices]
        columns = self._rows[places]
        values = zip(*(columns[name] for name in self._inputs), strict=True)
        return [
            (self._input(row, place), self.targets[place])
            for place, row in zip(places, values, strict=True)
        ]

    def _input(self, row: tuple[Any, ...], place: int) -> torch.Tensor:
        parts = [
            self._part(value, f"row {place}, column {name!r}")
            for name, value in zip(self._inputs, row, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat([part.flatten() for part in parts])

    def _first_color(self) -> Color:
        if self._first is None:
            row = self._rows[[0]]
            images = (row[name][0] for name in self._inputs if _is_image(row[name][0]))
            self._first = color_of(next(images))
        return self._first

    def _part(self, value: Any, where: str) -> torch.Tensor:
        if _is_image(value):
            color = self._color or alike(value, self._first_color(), where=where)
            return pixels(value, color=color)
        if value is None:
            raise DataError(f"{where}: has no value; fill it in, or filter such rows out")
        return inputs_of([value] if np.ndim(value) == 0 else value, where, scale=self._scale)


def _is_image(value: Any) -> bool:
    return hasattr(value, "convert") and hasattr(value, "mode")  # Pillow's


def hugging_face(
    dataset: Rows,
    *,
    inputs: str | Sequence[str],
    target: str,
    groups: str | None = None,
    classes: Sequence[str] | None = None,
    color: Color | None = None,
    scale: float | None = None,
) -> HuggingFaceRows:
    """Return a `datasets.Dataset`'s rows as a torch Dataset, read on access.

    `inputs` is a column of numbers, lists, arrays or images, or several whose numbers are put
    after one another. Images become pixels in [0, 1] of this `color`, by default the first image's;
    numbers are divided by `scale`. The target and the groups are read at once; `classes` names the target's classes, if
    they are text.

    Raises:
        DataError: it is no such data set, lacks a column, or its targets are no numbers.
    """
    names = getattr(dataset, "column_names", None)
    if isinstance(names, Mapping):
        raise DataError(
            f'the data set has several splits ({", ".join(names)}); give one, as dataset["train"]'
        )
    if names is None or not isinstance(dataset, Rows):
        raise DataError(
            "hugging_face needs a loaded datasets.Dataset with rows by index, got "
            f"{type(dataset).__name__}; load it first, not as a stream"
        )
    chosen = [inputs] if isinstance(inputs, str) else list(inputs)
    for name in [*chosen, target, *([groups] if groups else [])]:
        if name not in names:
            raise DataError(f"the data set has no column {name!r}; it has {', '.join(names)}")
    if not chosen or not len(dataset):
        raise DataError("the data set has no rows" if chosen else "inputs names no column")
    where = f"column {target!r}"
    numbers = numbered(dataset[target][:], classes, where="data set", what=where)
    made = None if groups is None else groups_of(dataset[groups][:], len(dataset), "data set")
    return HuggingFaceRows(
        dataset, chosen, targets_of(numbers, where), groups=made, color=color, scale=scale
    )
