"""Functions of an app's own, that settings name as "module:function" beside Meadow's own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ConfigError
from .model import Config

__all__ = ["OWN_FUNCTIONS", "function_of", "references_in"]

OWN_FUNCTIONS: Mapping[str, str] = {
    "selection.kind": "chooses a cohort",
    "robust.aggregation": "weighs a round's updates",
    "training.schedule": "says what a round's learning rate is multiplied by",
}
"""The settings, and what a function does that one names; `App.with_own_code` loads them."""


def references_in(config: Config) -> dict[str, str]:
    """Return the functions that are named, "module:function", by their settings."""
    found = {}
    for key in OWN_FUNCTIONS:
        section, name = key.split(".")
        value = getattr(getattr(config, section), name, "")  # a table that is not there names none
        if ":" in value:
            found[key] = value
    return found


def function_of(config: Config, key: str) -> Callable[..., Any] | None:
    """Return the function that a setting names, None if it names one of Meadow's.

    Raises:
        ConfigError: it is an app's own, and the app was not loaded.
    """
    reference = references_in(config).get(key)
    if reference is None:
        return None
    if key not in config.functions:
        raise ConfigError(
            f"{key} = {reference!r} is a function of an app folder, and the app's code is not "
            "loaded; run it with `meadow simulate` or `meadow run submit`"
        )
    found: Callable[..., Any] = config.functions[key]
    return found
