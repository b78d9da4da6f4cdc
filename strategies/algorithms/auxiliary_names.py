"""Auxiliary tensors: those that travel beside the params, in the same record, under names of their own.

An algorithm that needs more than the params sends `kind/name` too; a reply has the same names as
the instruction. So they add up like params do: in any executor, in a relay, in a secure sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, RunError

__all__ = ["auxiliary_name", "kind_of", "of_kind", "positive", "refuse_clashes"]

T = TypeVar("T")

SEPARATOR = "/"


def auxiliary_name(kind: str, name: str) -> str:
    """Return the name on the wire of the auxiliary tensor that belongs to a tensor."""
    return f"{kind}{SEPARATOR}{name}"


def kind_of(name: str, kinds: Collection[str]) -> str | None:
    """Return which of these kinds a name on the wire is of; None for one of the model's."""
    kind, separator, _ = name.partition(SEPARATOR)
    return kind if separator and kind in kinds else None


def of_kind(kind: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """Return the auxiliary tensors of a kind, by the names of the tensors that they belong to."""
    prefix = auxiliary_name(kind, "")
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def refuse_clashes(names: Iterable[str], kinds: Collection[str], *, algorithm: str) -> None:
    """Check that no tensor of a model has the name of an auxiliary tensor.

    Raises:
        ConfigError: one does.
    """
    for name in names:
        if kind := kind_of(name, kinds):
            raise ConfigError(
                f"tensor {name!r} has a name that {algorithm} uses for its own; rename the module "
                f"{kind!r} of the model"
            )


def positive(what: str, value: NDArray[Any]) -> float:
    """Return a clients' mean that something is divided by or scaled with.

    Raises:
        RunError: it is not > 0, or not finite.
    """
    number = float(value)
    if not (np.isfinite(number) and number > 0):
        raise RunError(
            f"{what} must have a mean > 0, got {number:g}; a client answered with something else"
        )
    return number
