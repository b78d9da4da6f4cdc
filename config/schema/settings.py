"""How a settings file becomes a frozen dataclass: types, bounds, and errors that help.

A section is a dataclass whose fields are made by `setting`; its annotations say the type and the
`KeyRule` says the rest. Values come from a file, from the environment and from the command line,
the later over the earlier; each remembers where it was said, so that an error can name it.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from ...deprecated import warn_renamed
from ...errors import ConfigError

__all__ = [
    "Given",
    "KeyRule",
    "RenamedFields",
    "Settings",
    "hints_of",
    "obstacle",
    "refuse",
    "renamed_settings",
    "rule_of",
    "section_of",
    "setting",
    "settings_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """What a setting's value may be, beyond its type."""

    meaning: str = ""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    or_like: tuple[str, re.Pattern[str]] | None = None
    """Other texts that are taken beside the choices: one as people write it, and all of them."""
    installed: str = ""
    """The group of entry points whose names are taken too; each becomes what it stands for."""
    unavailable: Mapping[Any, str] = field(default_factory=dict)
    """Values that are known but refused, each with the reason."""
    was: str = ""
    """Its name before, which is understood until 0.3, with a `RenamedWarning`."""
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Neighbours, each with the values beside which alone this setting means something; with no
    values listed, the neighbour must be set."""


def setting(default: Any, meaning: str, **rule: Any) -> Any:
    """Return a dataclass field with a default and the `KeyRule` of those keywords."""
    return field(default=default, metadata={"rule": KeyRule(meaning=meaning, **rule)})


@dataclass(frozen=True, slots=True)
class Given:
    """A value and where it was said; `textual` if it is still the text of a variable."""

    value: Any
    where: str
    textual: bool = False


Settings = dict[str, Given]
"""Dotted key -> what was said for it. A section that was named at all is a key too."""


def refuse(where: str, key: str, what: str) -> NoReturn:
    """Raise the `ConfigError` that names the place, the key and what is wrong."""
    shown = key if key.isprintable() and len(key) <= 100 else reprlib.repr(key)
    raise ConfigError(f"{where}: {shown} {what}".removesuffix(" "))


class RenamedFields:
    """A section with renamed settings: its attributes have their old names too, with a warning."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        for entry in fields(self):  # type: ignore[arg-type]
            if name and rule_of(entry, None).was == name:
                warn_renamed(type(self).__name__, name, entry.name)
                return getattr(self, entry.name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name)


# ---------------------------------------------------------------- the schema


def rule_of(entry: Field[Any], kind: Any) -> KeyRule:
    """Return the `KeyRule` of a dataclass field; a `Literal` type says its choices."""
    rule: KeyRule = entry.metadata.get("rule") or KeyRule()
    return replace(rule, choices=get_args(kind)) if get_origin(kind) is Literal else rule


_hints: dict[type[Any], Mapping[str, Any]] = {}


def hints_of(section: type[Any]) -> Mapping[str, Any]:
    """Return the types of a section's fields; they are read from its annotations once."""
    if section not in _hints:
        _hints[section] = get_type_hints(section)
    return _hints[section]


def settings_of(section: type[Any], prefix: str = "") -> Iterator[tuple[str, Any, KeyRule, Any]]:
    """Yield (dotted key, type, rule, default) of every setting, sections within included."""
    hints = hints_of(section)
    for entry in fields(section):
        if not entry.init:
            continue
        kind, key = hints[entry.name], f"{prefix}{entry.name}"
        inner = section_of(kind)
        if inner is not None:
            yield from settings_of(inner, f"{key}.")
        elif "rule" in entry.metadata:
            default = entry.default if entry.default is not MISSING else None
            yield key, kind, rule_of(entry, kind), default


def renamed_settings(schema: type[Any]) -> dict[str, str]:
    """Return the keys that settings had before: old key -> new key."""
    return {
        f"{key.rpartition('.')[0]}.{rule.was}".lstrip("."): key
        for key, _, rule, _ in settings_of(schema)
        if rule.was
    }


def obstacle(rule: KeyRule, neighbours: Mapping[str, Any]) -> str | None:
    """Return the neighbour beside whose value a setting means nothing, if there is one."""
    for key, values in rule.only.items():
        if neighbours[key] not in values if values else neighbours[key] is None:
            return key
    return None


def section_of(kind: Any) -> type[Any] | None:
    """Return the dataclass that a field of this type holds, if it holds one."""
    for candidate in (kind, *get_args(kind)):
        if isinstance(candidate, type) and is_dataclass(candidate):
            return candidate
    return None
