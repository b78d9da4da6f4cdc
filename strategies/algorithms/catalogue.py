"""Meadow's own algorithms by their `strategy.name`, with what `@builder` notes of each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from .builders import BUILT_IN, Entry, entry_of

__all__ = ["CATALOGUE", "Entry"]


def _built_in(name: str, module: str) -> Entry:
    entry = entry_of(getattr(import_module(f".{module}", __package__), name))
    assert entry is not None
    return entry


CATALOGUE: Mapping[str, Entry] = {name: _built_in(name, at) for name, at in BUILT_IN.items()}
