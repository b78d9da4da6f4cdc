"""Old names that the documentation of 0.1 has: of modules, settings and arguments.

They are understood until 0.3, with a warning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["MOVED", "RenamedWarning", "install", "warn_renamed"]

PACKAGE = __name__.rpartition(".")[0]
MOVED = {
    "batches": "training.batches",
    "classification": "training.classification",
    "client.app": "training.local.app",
    "client.compressed_app": "compression.client",
    "client.secure_app": "privacy.secagg.client.app",
    "client.trainer": "training.loop.trainer",
    "client_config": "config.client_config",
    "evaluation": "training.evaluation",
    "module_params": "training.module_params",
    "privacy.secure_grid": "privacy.secagg.server.grid",
    "privacy.secure_terms": "privacy.secagg.terms.terms",
    "seeds": "randomness.seeds",
    "server.app": "run.app",
    "server_config": "config.server_config",
    "simulations.partition": "partitioning.partition",
    "strategies.adapter": "strategies.rounds.adapter",
    "strategies.algorithm": "strategies.algorithms.algorithm",
    "strategies.fedavg": "strategies.algorithms.fedavg",
    "strategies.plan": "strategies.rounds.plan",
}
"""Old name inside the package: new name."""


class _Finder(MetaPathFinder, Loader):
    """Finds a module under its old name and returns the new one."""

    _spec: ModuleSpec | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old name, else None."""
        inside, _, name = fullname.partition(".")
        return ModuleSpec(fullname, self) if inside == PACKAGE and name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that has the new name, with a warning."""
        new = f"{PACKAGE}.{MOVED[spec.name.partition('.')[2]]}"
        warnings.warn(
            f"{spec.name} is {new} now; the old name goes with 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        module = import_module(new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back: it was executed under its new name."""
        module.__spec__ = self._spec


def install() -> None:
    """Install the importer of old names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class RenamedWarning(DeprecationWarning):
    """A setting or an argument was given by its old name."""


def warn_renamed(where: str, old: str, new: str) -> None:
    """Warn that a setting or an argument was renamed."""
    message = f"{where}: {old} is {new} now; the old name goes with 0.3"
    warnings.warn(message, RenamedWarning, stacklevel=3)
