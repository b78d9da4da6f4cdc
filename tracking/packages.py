"""The trackers' packages: imported on first use; the error says how to install them."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from ..errors import ConfigError

__all__ = ["needed", "require"]

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
}
"""Neither package reports its use to its maker, unless the environment says otherwise."""


def needed(module: str, tracker: str) -> ModuleType:
    """Import a module of the extra "tracking".

    Raises:
        ConfigError: it is not installed.
    """
    require(module, tracker)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    made = import_module(module)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    return made


def require(module: str, tracker: str) -> None:
    """Check that a package is installed, without importing it.

    Raises:
        ConfigError: it is not.
    """
    package = module.partition(".")[0]
    if find_spec(package) is None:
        raise ConfigError(
            f"tracking with {tracker} needs {package}, which is not installed: "
            "pip install 'meadow-fl[tracking]'"
        )
