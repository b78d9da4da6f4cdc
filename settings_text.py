"""Settings as TOML text again: what a run leaves as its resolved meadow.toml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from .settings import obstacle, rule_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["settings_to_toml", "value_to_toml"]


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
    if lines:
        yield "\n".join([f"[{prefix}]", *lines] if prefix else lines)
    for name, value in values.items():
        if is_dataclass(value) and not isinstance(value, type):
            yield from _sections(value, f"{prefix}.{name}" if prefix else name)


def value_to_toml(value: str | bool | float | tuple[str, ...]) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(value_to_toml(item) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
