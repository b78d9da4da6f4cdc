"""Modules can be imported by the names that 0.1's documentation gave them."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from meadow.deprecated import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_old_names_warn_and_are_the_new_modules(old: str) -> None:
    """The warning names the new module, and there is one module, not two."""
    code = (
        "import sys, warnings\n"
        "from importlib import import_module\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        f"    old = import_module('meadow.{old}')\n"
        f"assert any('meadow.{MOVED[old]} now' in str(one.message) for one in seen), seen\n"
        f"assert old is import_module('meadow.{MOVED[old]}')\n"
        f"assert old.__spec__.name == 'meadow.{MOVED[old]}'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


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
