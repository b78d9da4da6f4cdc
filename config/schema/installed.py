"""Names that installed packages register, by entry points: what a setting may be beside its own choices."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points

from ...errors import ConfigError

__all__ = [
    "RULES",
    "SCHEDULES",
    "SELECTIONS",
    "STRATEGIES",
    "Installed",
    "installed_as",
    "installed_in",
]

STRATEGIES = "meadow.strategies"
"""The group of entry points whose names `strategy.name` takes; each is a builder, "module:function"."""
SELECTIONS = "meadow.selections"
"""That of `selection.kind`; each is a function that chooses a cohort."""
RULES = "meadow.rules"
"""That of `robust.aggregation`; each is a function that weighs a round's updates."""
SCHEDULES = "meadow.schedules"
"""That of `training.schedule`; each is a function of the round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A name that an installed package registers.

    Attributes:
        name: the name in a configuration.
        reference: what it stands for, "module:function".
        package: the distribution that registers it, with its version.
    """

    name: str
    reference: str
    package: str


def installed_in(group: str) -> tuple[Installed, ...]:
    """Return what is registered in a group of entry points, by name; nothing is imported."""
    found = {
        Installed(
            name=entry.name,
            reference=entry.value,
            package="" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}",
        )
        for entry in entry_points(group=group)
    }
    return tuple(sorted(found, key=lambda each: (each.name, each.package)))


def installed_as(name: str, group: str) -> str | None:
    """Return the reference that a name stands for, None if no package registers it.

    Raises:
        ConfigError: two packages register it for different references.
    """
    found = [each for each in installed_in(group) if each.name == name]
    if len({each.reference for each in found}) > 1:
        raise ConfigError(
            f"{name!r} is registered by {' and by '.join(each.package for each in found)}; "
            f'write "{found[0].reference}" or "{found[1].reference}"'
        )
    return found[0].reference if found else None
