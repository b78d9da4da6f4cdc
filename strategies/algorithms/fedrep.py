"""FedRep: clients learn their own head on the common features, and then the features.

Source: Collins, Hassani, Mokhtari, Shakkottai, "Exploiting shared representations for personalized
federated learning" (2021), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .algorithm import Algorithm
from .bounds import require_whole
from .builders import builder
from .fedper import fedper

__all__ = ["fedrep"]


@builder(
    example={"private": ["out.*"]},
    client="trains its private layers, then the shared ones, and answers with those",
    keeps="the private layers",
    personal=True,
)
def fedrep(*, private: Sequence[str] = (), head_epochs: int = 1) -> Algorithm:
    """Share and keep layers as `fedper` does; a client trains one part after the other.

    It first trains the private layers alone for `head_epochs` epochs, and then the shared ones
    alone for those that [training] says.

    Raises:
        ConfigError: as `fedper`, or `head_epochs` is not a whole number >= 1.
    """
    epochs = require_whole("head_epochs", head_epochs, at_least=1)
    return replace(
        fedper(private=private),
        name="fedrep",
        client="meadow.training.algorithms.personalization:FedRep",
        client_config={"algorithm": "fedrep", "head-epochs": epochs},
        evaluate_config={"algorithm": "fedrep"},
    )
