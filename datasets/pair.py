"""A pair of tensors (inputs, targets), checked, which knows its samples' groups and classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ..errors import DataError

__all__ = ["Pair", "groups_of", "inputs_of", "make_pair", "targets_of"]

Values = ArrayLike | torch.Tensor


class Pair(tuple[torch.Tensor, torch.Tensor]):
    """What a `Task` takes as a pair of tensors: `inputs, targets = pair`.

    Attributes:
        groups: for `Site.share_of(pair.targets, groups=pair.groups)`: (samples,), read-only, if
            the data say which samples belong together.
        classes: the names of targets 0, 1, ..., if they have names.
    """

    groups: NDArray[np.generic] | None
    classes: tuple[str, ...]

    def __new__(
        cls,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        *,
        groups: NDArray[np.generic] | None = None,
        classes: Sequence[str] = (),
    ) -> Self:
        made = super().__new__(cls, (inputs, targets))
        made.groups, made.classes = groups, tuple(classes)
        return made

    @property
    def inputs(self) -> torch.Tensor:
        """The inputs, (samples, ...)."""
        return self[0]

    @property
    def targets(self) -> torch.Tensor:
        """The targets, (samples, ...)."""
        return self[1]


def make_pair(
    inputs: Values,
    targets: Values,
    *,
    where: str,
    groups: Values | None = None,
    classes: Sequence[str] = (),
    scale: float | None = None,
) -> Pair:
    """Return the data as checked tensors; `where` is what an error calls their source.

    Raises:
        DataError: they are empty, of different lengths, no numbers, or not finite.
    """
    made_inputs, made_targets = inputs_of(inputs, where, scale=scale), targets_of(targets, where)
    if len(made_inputs) != len(made_targets):
        raise DataError(
            f"{where}: there are {len(made_inputs)} inputs but {len(made_targets)} targets; "
            "give one target a sample"
        )
    if not len(made_inputs):
        raise DataError(f"{where}: there are no samples")
    made_groups = None if groups is None else groups_of(groups, len(made_targets), where)
    return Pair(made_inputs, made_targets, groups=made_groups, classes=classes)


def inputs_of(values: Values, where: str, *, scale: float | None = None) -> torch.Tensor:
    """Return inputs as a tensor: floating-point numbers of 64 bits become 32, others stay.

    With a `scale` they are divided by it, as float32.

    Raises:
        DataError: they are no numbers, or one is not finite.
    """
    tensor = _finite(_tensor(values, "inputs", where), "inputs", where)
    if scale is not None:
        if not scale > 0:
            raise DataError(f"{where}: scale must be > 0, got {scale}")
        return tensor.float() / scale
    return tensor.float() if tensor.dtype in (torch.float64, torch.bool) else tensor


def targets_of(values: Values, where: str) -> torch.Tensor:
    """Return targets as a tensor: whole numbers as int64, all others as float32.

    Raises:
        DataError: they are no numbers, or one is not finite.
    """
    tensor = _finite(_tensor(values, "targets", where), "targets", where)
    return tensor.float() if tensor.is_floating_point() else tensor.long()


def groups_of(values: Values, samples: int, where: str) -> NDArray[np.generic]:
    """Return which samples belong together, as an array that cannot be written to.

    Raises:
        DataError: it is not one group a sample.
    """
    groups = np.array(values)
    if groups.shape != (samples,):
        raise DataError(
            f"{where}: groups must be one a sample, shape ({samples},), got {groups.shape}"
        )
    groups.flags.writeable = False
    return groups


def _tensor(values: Values, what: str, where: str) -> torch.Tensor:
    if not isinstance(values, torch.Tensor):
        values = _from_array(values, what, where)
    if not values.ndim:
        raise DataError(f"{where}: {what} must have one entry a sample, got a single number")
    return values


def _from_array(values: ArrayLike, what: str, where: str) -> torch.Tensor:
    try:
        array: NDArray[Any] = np.asarray(values)
    except ValueError:  # rows of different lengths
        raise DataError(
            f"{where}: {what} have entries of different shapes; pad or cut them to one"
        ) from None
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: {what} must be numbers, got {array.dtype}; encode them as numbers first"
        )
    if array.dtype.kind == "u" and array.itemsize > 1:
        array = array.astype(np.int64)
    if array.dtype.kind == "f" and array.itemsize != 2:
        array = array.astype(np.float32, copy=False)
    native = array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)
    return torch.from_numpy(native if native.flags.c_contiguous else native.copy())


def _finite(tensor: torch.Tensor, what: str, where: str) -> torch.Tensor:
    if tensor.is_floating_point() and not torch.isfinite(tensor.sum()):  # cheap; sums overflow too
        wrong = torch.nonzero(~torch.isfinite(tensor))
        if len(wrong):
            place = wrong[0].tolist()
            raise DataError(
                f"{where}: {what}{place} is {tensor[tuple(place)].item()}, and {len(wrong)} values "
                "are not finite in all; remove these samples or fill the values in"
            )
    return tensor
