"""The client's half of the algorithm that an instruction names."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...errors import ProtocolError
from ...strategies.algorithms.builders import BUILT_IN
from ...strategies.algorithms.catalogue import CATALOGUE
from ..settings import TrainingSettings
from .algorithms import LocalAlgorithm
from .personalization import Personalization
from .work_bench import LocalWork

if TYPE_CHECKING:
    from ...task import Task

__all__ = ["ClientHalf", "client_half"]

ClientHalf = LocalAlgorithm | Personalization | LocalWork
"""Steps of training, training with params of the client's own, or other work."""


def client_half(settings: TrainingSettings, task: Task) -> ClientHalf:
    """Return what `Algorithm.client` is of the algorithm that an instruction names: one of Meadow's,
    or that of this process's own copy of the app.

    Raises:
        ProtocolError: there is none of that name.
    """
    name = settings.algorithm
    if name in BUILT_IN or name == "plain":
        half = _built_in(name)
    elif task.algorithm is None:
        raise ProtocolError(
            f"algorithm {name!r} is none of Meadow's, and this app's meadow.toml names none of its "
            "own in strategy.name"
        )
    else:
        half = _made(task.algorithm(name, settings.algorithm_arguments).client)
    if not isinstance(half, ClientHalf):
        raise ProtocolError(f"algorithm {name!r} has no client's half, no meadow.LocalAlgorithm")
    return half.bound(settings) if isinstance(half, LocalAlgorithm) else half


@functools.cache
def _built_in(name: str) -> Any:
    """Return one of Meadow's; its settings are all in [training] and the instruction."""
    client = None if name == "plain" else CATALOGUE[name].build_example().client
    return LocalAlgorithm() if client is None else _made(client)


def _made(client: Any) -> Any:
    if not isinstance(client, str):
        return client
    module, _, name = client.partition(":")
    return getattr(import_module(module), name)()
