"""FedProx: federated averaging whose clients are pulled towards the global params.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous
networks" (2020), equation 2: a client minimises its loss + mu / 2 * |params - global params|^2.
"""

from __future__ import annotations

from dataclasses import replace

from .algorithm import Algorithm
from .bounds import require_number
from .builders import builder
from .fedavg import fedavg

__all__ = ["fedprox"]


@builder(
    keys={"server": None},
    client="adds a proximal term to its gradients",
    privacy=("client", "record"),
)
def fedprox(*, proximal_mu: float = 0.0, server: Algorithm | None = None) -> Algorithm:
    """Average as FedAvg does, and ask the clients for the proximal objective.

    `server` is another algorithm for the server's side, `fedavg(server_optimizer="adam")` say.

    Edge cases: with `proximal_mu` 0, Flower's default, it is FedAvg.
    Raises:
        ConfigError: `proximal_mu` is negative or not a finite number.
    """
    mu = require_number("proximal_mu", proximal_mu, at_least=0)
    averaging = server or fedavg()
    config = {**averaging.client_config, "proximal-mu": mu}
    return replace(averaging, name="fedprox", client_config=config)
