"""Which Meadow this is, for the server to know."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["VERSION"]

try:
    VERSION = version("meadow-fl")
except PackageNotFoundError:  # a checkout that is not installed
    VERSION = "0"
