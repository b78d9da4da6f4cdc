"""Local objectives: how some algorithms correct a client's gradients.

Each is elementwise in its tensors: it works on one client's and, unchanged, on tensors with a
leading client axis.

Shapes: all the same; `start` and `shared`, with which the round began, may lack the client axis.
"""

from __future__ import annotations

import torch

__all__ = ["controlled", "dynamic", "next_control", "next_gradient", "proximal"]

Tensor = torch.Tensor


def proximal(gradient: Tensor, params: Tensor, start: Tensor, *, mu: float) -> Tensor:
    """Return the gradient of the loss plus mu/2 ||params - start||^2.

    Source: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", eq. 2.
    """
    return gradient.add(params - start, alpha=mu)


def controlled(gradient: Tensor, own: Tensor, shared: Tensor) -> Tensor:
    """Return the gradient with a client's own control variate replaced by the shared one.

    Source: Karimireddy et al. 2020, "SCAFFOLD", algorithm 1, line 10.
    """
    return gradient - own + shared


def next_control(own: Tensor, shared: Tensor, delta: Tensor, *, distance: Tensor) -> Tensor:
    """Return a client's next control variate: the mean gradient that its steps followed.

    `delta` is params - start, and `distance` the number of steps times the learning rate.
    Source: Karimireddy et al. 2020, "SCAFFOLD", algorithm 1, line 12, option II.
    """
    return own - shared - delta / distance


def dynamic(
    gradient: Tensor, params: Tensor, start: Tensor, own: Tensor, *, alpha: float
) -> Tensor:
    """Return the gradient of the loss - <own, params> + alpha/2 ||params - start||^2.

    Source: Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", equation 1.
    """
    return gradient.add(params - start, alpha=alpha) - own


def next_gradient(own: Tensor, delta: Tensor, *, alpha: float) -> Tensor:
    """Return the gradient of a client's loss where its last round ended, estimated from its steps.

    Source: Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", algorithm 1.
    """
    return own.sub(delta, alpha=alpha)
