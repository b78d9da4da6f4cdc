"""Local noise: a client's delta is private before it is sent, against the server too.

Gaussian noise is for a delta of bounded L2 norm, Laplace noise for one of bounded L1 norm.

Source: Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis"
(2006), proposition 1, for Laplace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ....errors import UpdateError
from ....flower.messages import FlatTensor, MemoryTensor
from ....randomness.entropy import Entropy, words_from
from ....strategies.algorithms.algorithm import Params
from ....strategies.algorithms.server_optimizers import is_floating
from ..noise_terms import NoiseTerms
from .clipping import Clipping, Reals, clip_update
from .inversion import Words
from .parts import BLOCK
from .rounded import BITS, Kind, rounded_noise

__all__ = ["noisy_update"]

WHOLE_BITS = 60
"""The bits of a clipped value on the grid."""
ROUNDING = 2.0**-40
"""A margin that exceeds the rounding errors of float64."""


def noisy_update(
    params: Params,
    tensors: Mapping[str, FlatTensor],
    clipping: Clipping,
    noise: NoiseTerms,
    entropy: Entropy,
) -> dict[str, FlatTensor]:
    """Return a client's tensors with a clipped and noisy delta, in the params' dtypes.

    Guarantees: the result releases `noise.event`, for neighbours that differ by the client's
        delta. This is exact, independent of floating-point rounding, as the result is a function
        of whole numbers with noise of the exact distribution.
    Edge cases: tensors that are not floating-point are those of `params`. A delta that is not
        finite counts as none: that there is one is not to be told either.
    """
    laplace = noise.source == "local_laplace"
    try:
        deltas = _bounded(params, tensors, clipping, laplace=laplace)
    except UpdateError:
        unchanged = {name: MemoryTensor(values) for name, values in params.items()}
        deltas = _bounded(params, unchanged, clipping, laplace=laplace)
    scale = noise.noise_multiplier * clipping.clip_norm / (math.sqrt(2.0) if laplace else 1.0)
    words = words_from(entropy)
    kind: Kind = "laplace" if laplace else "gaussian"
    noisy = dict(params)
    for name, delta in deltas.items():
        moved = _reals(params[name])
        for start in range(0, delta.size, BLOCK):
            part = delta[start : start + BLOCK]
            moved[start : start + BLOCK] += _noised(part, clipping.clip_norm, scale, kind, words)
        if params[name].dtype.kind == "c":
            moved = moved.view(np.complex128)
        noisy[name] = moved.astype(params[name].dtype).reshape(params[name].shape)
    return {name: MemoryTensor(np.ascontiguousarray(noisy[name])) for name in tensors}


def _noised(values: Reals, clip: float, scale: float, kind: Kind, words: Words) -> Reals:
    """Return values of at most `clip` with noise of this scale, as a function of whole numbers: the
    values on a grid, rounded towards zero so that norms do not grow, plus noise."""
    bits = min(BITS, WHOLE_BITS - math.ceil(math.log2(clip / scale)))
    unit = math.ldexp(scale, -bits)
    whole = (values * ((1 - ROUNDING) / unit)).astype(np.int64)
    whole += rounded_noise(kind, len(values), words) >> (BITS - bits)
    return np.asarray((whole + 0.5) * unit, np.float64)


def _bounded(
    params: Params, tensors: Mapping[str, FlatTensor], clipping: Clipping, *, laplace: bool
) -> dict[str, Reals]:
    """Return the clipped deltas in float64; they are rounded to the params' dtype after the noise.

    Raises:
        UpdateError: a value is not finite.
    """
    if not laplace:
        tensors, _ = clip_update(params, tensors, clipping, exact=True)
    real = [name for name in tensors if is_floating(params[name].dtype)]
    deltas = {name: _reals(tensors[name].numpy()) - _reals(params[name]) for name in real}
    with np.errstate(over="ignore"):
        total = math.fsum(float(np.abs(delta).sum()) for delta in deltas.values())
    if not math.isfinite(total):
        raise UpdateError("the update has values that are not finite: it cannot be clipped")
    factor = min(1.0, clipping.clip_norm / total) if laplace and total else 1.0
    return {name: delta * factor for name, delta in deltas.items()}


def _reals(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Reals:
    """Return a tensor's values as a row of float64; a complex value becomes two values."""
    row = np.ascontiguousarray(values).reshape(-1)
    flat = row.view(row.real.dtype) if row.dtype.kind == "c" else row
    return flat.astype(np.float64)
