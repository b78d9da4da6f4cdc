"""Feature skew: every client's inputs have noise of a strength of their own.

Source: noise-based feature imbalance, Li, Diao, Chen, He 2021 (arXiv 2102.02079).
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from ..errors import DataError

__all__ = ["shifted"]

Inputs = TypeVar("Inputs", bound=Any)


def shifted(inputs: Inputs, *, variance: float, seed: int) -> Inputs:
    """Return a NumPy array or a torch tensor with Gaussian noise of this variance added.

    Guarantees: the same seed and shape give the same noise, for an array as for a tensor of the
        same dtype; `inputs` stay as they are.
    Edge cases: without variance `inputs` themselves are returned.
    Raises:
        DataError: `inputs` are no floating-point numbers.
    """
    if not variance:
        return inputs
    if not (inputs.dtype.kind == "f" if isinstance(inputs, np.ndarray) else _is_float(inputs)):
        kind = getattr(inputs, "dtype", type(inputs).__name__)
        raise DataError(
            f"inputs must be floating-point numbers to take noise, got {kind}; "
            "convert them first, for instance inputs.float() / 255"
        )
    generator = np.random.default_rng(seed)
    noise: Any = generator.standard_normal(tuple(inputs.shape), dtype=np.float32)
    noise *= np.float32(variance**0.5)
    if isinstance(inputs, np.ndarray):
        noise = noise.astype(inputs.dtype, copy=False)
    else:
        noise = inputs.new_tensor(noise)
    moved: Inputs = inputs + noise
    return moved


def _is_float(inputs: Any) -> bool:
    return hasattr(inputs, "new_tensor") and bool(inputs.dtype.is_floating_point)
