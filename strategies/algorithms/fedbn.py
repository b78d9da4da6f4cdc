"""FedBN: batch norms stay at the clients, whose inputs are distributed differently.

Source: Li, Jiang, Zhang, Kamp, Dou, "FedBN: federated learning on non-IID features via local batch
normalization" (2021), algorithm 1.
"""

from __future__ import annotations

from ...errors import ConfigError
from .algorithm import Algorithm, Params
from .builders import builder
from .fedper import sharing

__all__ = ["fedbn"]

STATISTIC = "running_mean"


@builder(
    client="trains all layers, and answers with all but the batch norms",
    keeps="the batch norms",
    personal=True,
)
def fedbn() -> Algorithm:
    """Average all layers but the batch norms, which are known by their running means.

    Raises:
        ConfigError: at the start, the model has no batch norm.
    """
    return sharing(_norms_in, name="fedbn", config={"algorithm": "fedbn"})


def _norms_in(params: Params) -> frozenset[str]:
    layers = {name.removesuffix(STATISTIC) for name in params if name.endswith(STATISTIC)}
    if not layers:
        raise ConfigError("fedbn needs a model with batch norms, and this one has none")
    return frozenset(name for name in params if f"{name.rpartition('.')[0]}." in layers)
