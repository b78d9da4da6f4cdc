"""Packages that only some data need: imported on first use; the error says how to install them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ..errors import DataError

__all__ = ["needed"]


def needed(module: str, *, what: str) -> ModuleType:
    """Import a module of the extra "data".

    Raises:
        DataError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise DataError(
            f"{what} needs {package}, which is not installed: pip install 'meadow-fl[data]'"
        ) from None
