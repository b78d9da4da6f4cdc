"""The clients' half: clipping bounds each client's delta by the sensitivity of the sum.

Only floating-point tensors are clipped and released; others keep their values. A tensor is
represented by its name and the squared L2 norm of its delta, which may be an array with one value
per client.

Sources: McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language
models" (2018): flat and per-layer clipping; Andrew, Thakkar, McMahan, Ramaswamy, "Differentially
private learning with adaptive clipping" (2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ....errors import ProtocolError, UpdateError
from ....flower.messages import FlatTensor, MemoryTensor
from ....strategies.algorithms.algorithm import Params
from ....strategies.algorithms.bounds import require_choice, require_number
from ....strategies.algorithms.norms import ScaledDelta, delta_squares
from ....strategies.algorithms.server_optimizers import is_floating
from ..noise_terms import NoiseTerms, require_noise_terms

__all__ = [
    "WITHIN_KEY",
    "Clipping",
    "ClippingKind",
    "Reals",
    "clip_update",
    "reported_metrics",
]

ClippingKind = Literal["fixed", "adaptive", "per_layer"]
KINDS = ("fixed", "adaptive", "per_layer")
Reals = NDArray[np.float64]
NORM_KEY = "dp-clip-norm"
KIND_KEY = "dp-clipping"
MARGIN = 2.0**-22
WITHIN_KEY = "dp-within-clip"
"""The metric of a client whose delta was within the norm (1) or was clipped (0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping:
    """How a client's delta is bounded, in one round.

    Attributes:
        clip_norm: the largest L2 norm of a client's delta, over all tensors: the sensitivity of the
            sum. "per_layer" bounds each of L tensors by clip_norm / sqrt(L).
    """

    kind: ClippingKind = "fixed"
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        require_choice("clipping", self.kind, KINDS)
        require_number("clip_norm", self.clip_norm, above=0)

    def factors(self, squares: Mapping[str, Reals]) -> dict[str, Reals]:
        """Return the factor of each tensor's delta, in (0, 1].

        A clipped delta ends slightly below the norm, so that it is still within the norm after
        rounding to float32 (if its params are not much larger), and is not clipped again.

        Edge cases: 1 for a delta of zero.
        Raises:
            UpdateError: a delta is not finite.
        """
        if not squares:
            return {}
        total: Reals = sum(squares.values(), start=np.zeros(()))
        if not np.isfinite(total).all():
            raise UpdateError("the update has values that are not finite: it cannot be clipped")
        if self.kind != "per_layer":
            return dict.fromkeys(squares, _factor(total, self.clip_norm))
        bound = self.clip_norm / math.sqrt(len(squares))
        return {name: _factor(square, bound) for name, square in squares.items()}

    def record(self) -> dict[str, float | str]:
        """Return the clipping as the entries of an instruction's ConfigRecord."""
        return {NORM_KEY: self.clip_norm, KIND_KEY: self.kind}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Clipping | None:
        """Return the clipping in an instruction's ConfigRecord, None if it has none.

        Raises:
            ProtocolError: the kind is unknown, or the norm is out of its bounds.
        """
        if NORM_KEY not in record:
            return None
        kind = record.get(KIND_KEY)
        if kind not in KINDS:
            raise ProtocolError(f"{KIND_KEY} must be one of {KINDS}, got {kind!r:.80}")
        return cls(kind=kind, clip_norm=require_noise_terms(NORM_KEY, record[NORM_KEY]))

    @classmethod
    def by_server(cls, record: Mapping[str, Any]) -> Clipping | None:
        """Return how the server clips what clients send, from their instruction's ConfigRecord; None if
        it does not: noise that they have added themselves would be cut off.

        Raises:
            ProtocolError: as `of`, or the noise is none that there is.
        """
        noise = NoiseTerms.of(record)
        return cls.of(record) if noise is not None and noise.place == "server" else None


def clip_update(
    params: Params, tensors: Mapping[str, FlatTensor], clipping: Clipping, *, exact: bool = False
) -> tuple[dict[str, FlatTensor], bool]:
    """Return a client's tensors with a clipped delta, and whether the delta was within the bound.

    Guarantees: the delta is computed in float64. Reading the tensors rounds them to the params'
        dtype, by which the delta may exceed the bound: by nearly the bound itself in 16 bits.
        `exact` tensors are float64 (complex128), and their delta is within the bound. Tensors that
        are not floating-point are those of `params`.
    Raises:
        UpdateError: a value is not finite.
    """
    squares = delta_squares(params, tensors)
    factors = clipping.factors({name: np.array(square) for name, square in squares.items()})
    clipped: dict[str, FlatTensor] = {}
    for name, tensor in tensors.items():
        if not is_floating(params[name].dtype):
            clipped[name] = MemoryTensor(np.ascontiguousarray(params[name]))
        elif factors[name] < 1:
            clipped[name] = ScaledDelta(params[name], tensor, float(factors[name]), exact=exact)
        else:
            clipped[name] = tensor
    return clipped, all(factor == 1 for factor in factors.values())


def reported_metrics(clipping: Clipping, within: bool) -> dict[str, float]:
    """Return the metrics that a client reports for adaptive clipping; empty with other clipping."""
    return {WITHIN_KEY: float(within)} if clipping.kind == "adaptive" else {}


def _factor(square: Reals, bound: float) -> Reals:
    norm = np.sqrt(square)
    factor: Reals = np.ones_like(norm)
    np.divide(bound * (1 - MARGIN), norm, out=factor, where=norm > bound)
    return factor
