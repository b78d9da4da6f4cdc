"""Settings as TOML text again: what a run leaves as its resolved meadow.toml."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from .settings import hints_of, obstacle, rule_of, section_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["settings_to_toml", "value_to_toml"]

BARE = re.compile(r"[A-Za-z0-9_-]+")


def settings_to_toml(made: DataclassInstance) -> str:
    """Return every setting that means something, defaults included, section by section.

    Guarantees: reading the text gives equal settings.
    """
    return "\n\n".join(_sections(made, "")) + "\n"


def _sections(made: DataclassInstance, prefix: str) -> Iterator[str]:
    values = {entry.name: getattr(made, entry.name) for entry in fields(made)}
    lines = [
        f"{entry.name} = {value_to_toml(values[entry.name])}"
        for entry in fields(made)
        if "rule" in entry.metadata
        and values[entry.name] is not None
        and obstacle(rule_of(entry, None), values) is None
    ]
    for entry in fields(made):
        if entry.metadata.get("free"):
            lines += [f"{_key(key)} = {value_to_toml(v)}" for key, v in values[entry.name].items()]
    if lines:
        yield "\n".join([f"[{prefix}]", *lines] if prefix else lines)
    for name, kind in hints_of(type(made)).items():
        value = values.get(name)
        if section_of(kind) is not None and is_dataclass(value) and not isinstance(value, type):
            yield from _sections(value, f"{prefix}.{name}" if prefix else name)


def _key(name: str) -> str:
    return name if BARE.fullmatch(name) else json.dumps(name)


def value_to_toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        inner = (f"{_key(key)} = {value_to_toml(item)}" for key, item in value.items())
        return f"{{ {', '.join(inner)} }}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(value_to_toml(item) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
