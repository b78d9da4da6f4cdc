"""Local objectives: corrections of the gradient that some algorithms ask of clients.

Each is elementwise in (gradient, params, global params): it works on one client's tensors and,
unchanged, on tensors with a leading client axis.
"""

from __future__ import annotations

import torch

__all__ = ["proximal"]


def proximal(
    gradient: torch.Tensor, params: torch.Tensor, start: torch.Tensor, *, mu: float
) -> torch.Tensor:
    """Return the gradient of the loss plus mu/2 ||params - start||^2.

    Shapes: all the same, or `start` without the client axis; `start` are the params that the
        round began with.
    Source: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", eq. 2.
    """
    return gradient.add(params - start, alpha=mu)
