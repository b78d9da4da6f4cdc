"""Companions: tensors that travel beside the params, in the same record, under names of their own.

An algorithm that needs more than the params sends `kind/name` too; a reply has the same names as
the instruction. So companions add up like params do: in any executor, in a relay, in a secure sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from ...errors import ConfigError

__all__ = ["companion", "kind_of", "of_kind", "refuse_clashes"]

T = TypeVar("T")

SEPARATOR = "/"


def companion(kind: str, name: str) -> str:
    """Return the name on the wire of the companion that belongs to a tensor."""
    return f"{kind}{SEPARATOR}{name}"


def kind_of(name: str, kinds: Collection[str]) -> str | None:
    """Return which of these kinds a name on the wire is of; None for one of the model's."""
    kind, separator, _ = name.partition(SEPARATOR)
    return kind if separator and kind in kinds else None


def of_kind(kind: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """Return the companions of a kind, by the names of the tensors that they belong to."""
    prefix = companion(kind, "")
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def refuse_clashes(names: Iterable[str], kinds: Collection[str], *, algorithm: str) -> None:
    """Check that no tensor of a model has the name of a companion.

    Raises:
        ConfigError: one does.
    """
    for name in names:
        if kind := kind_of(name, kinds):
            raise ConfigError(
                f"tensor {name!r} has a name that {algorithm} uses for its own; rename the module "
                f"{kind!r} of the model"
            )
