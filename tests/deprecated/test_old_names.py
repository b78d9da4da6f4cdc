"""Modules can be imported by the names that 0.1's documentation gave them."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

OLD_NAMES = """
import sys, warnings
from importlib import import_module
from meadow.deprecated import MOVED

for before, now in MOVED.items():
    for loaded in [name for name in sys.modules if name.startswith("meadow.")]:
        if loaded != "meadow.deprecated":
            del sys.modules[loaded]  # each name is the first that is imported
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        old = import_module(f"meadow.{before}")
    assert any(f"meadow.{now} now" in str(one.message) for one in seen), (before, seen)
    assert old is import_module(f"meadow.{now}"), before
    assert old.__spec__.name == f"meadow.{now}", before
"""


def test_old_names_warn_and_are_the_new_modules() -> None:
    """The warning names the new module, and there is one module, not two."""
    subprocess.run([sys.executable, "-c", OLD_NAMES], check=True, timeout=120)


def test_other_names_are_not_found() -> None:
    """A module that never was is an ImportError as ever."""
    with pytest.raises(ModuleNotFoundError, match=r"meadow\.strategies\.fedmagic"):
        import_module("meadow.strategies.fedmagic")


def test_the_configuration_is_where_it_was() -> None:
    """`meadow.config` is a package now, and has what the module had."""
    import meadow.config

    assert meadow.config.load_config is meadow.load_config  # type: ignore[attr-defined]
    assert meadow.config.Config is meadow.Config  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = meadow.config.nothing  # type: ignore[attr-defined]
