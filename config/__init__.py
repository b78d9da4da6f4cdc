"""Configuration: meadow.toml, client.toml and server.toml as frozen dataclasses."""

from __future__ import annotations

from importlib import import_module

_HOMES = {
    "Config": ".sections.model",
    "config_to_toml": ".load",
    "load_config": ".load",
    "make_config": ".load",
}
"""What 0.1's module of this name had, loaded when first used."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
