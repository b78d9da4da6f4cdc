"""All robust rules by name, what goes before them, and how many clients they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ConfigError, RunError
from ..algorithms.bounds import require_choice, require_number, require_whole
from . import centres, coordinates, mixing, selection
from .coordinates import Reduction
from .geometry import Geometry, Mixing, Reals

__all__ = ["AGGREGATIONS", "PREAGGREGATIONS", "AggregationRule", "Weigh", "robust_rule"]

AGGREGATIONS = (
    "mean",
    "median",
    "trimmed_mean",
    "geometric_median",
    "centred_clipping",
    "krum",
    "multi_krum",
    "bulyan",
    "mda",
    "fltrust",
)
PREAGGREGATIONS = ("clip", "adaptive_clip", "nnm", "bucketing")
Weigh = Callable[..., Any]
"""A rule of an app's own: weigh(updates, byzantine=f) returns what each of the `Geometry`'s n updates is
multiplied by, (n,); their sum is what is made of the updates."""
MDA_BYZANTINE_MAX = 16
"""Its search doubles with each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationRule:
    """Mixings of the updates, one after the other, and what is then done value by value.

    Without a reduction the mixings end with a single row.
    """

    name: str
    mixings: Sequence[Mixing]
    reduce: Reduction | None
    clients_min: int
    """With fewer updates it resists nothing."""


def robust_rule(
    aggregation: str,
    *,
    byzantine: int = 0,
    preaggregation: Sequence[str] = (),
    clip_norm: float | None = None,
    bucket_size: int = 2,
    iterations: int = 3,
    trusted: int | None = None,
    weigh: Weigh | None = None,
) -> AggregationRule:
    """Return a rule by its name, after pre-aggregations by theirs, in their order.

    | aggregation        | clients needed | other arguments            |
    |--------------------|----------------|----------------------------|
    | "mean"             | 1              |                            |
    | "median"           | 2 f + 1        |                            |
    | "trimmed_mean"     | 2 f + 1        |                            |
    | "geometric_median" | 2 f + 1        | iterations                 |
    | "centred_clipping" | 2 f + 1        | iterations, clip_norm      |
    | "krum"             | 2 f + 3        |                            |
    | "multi_krum"       | 2 f + 3        |                            |
    | "bulyan"           | 4 f + 3        |                            |
    | "mda"              | 2 f + 1        |                            |
    | "fltrust"          | 2              | trusted, a client's id     |

    f is `byzantine`, so many clients may be adversaries. "clip" scales updates down to
    `clip_norm`, "adaptive_clip" to what most of them have, "nnm" mixes each with its nearest
    neighbours, and "bucketing" takes means of `bucket_size` of them, which multiplies the
    clients needed. With `weigh` the aggregation is that function, and needs 2 f + 1 clients.

    Raises:
        ConfigError: a name is unknown, an argument is out of its bounds, or they do not fit.
    """
    if weigh is None:
        require_choice("aggregation", aggregation, AGGREGATIONS)
    for name in preaggregation:
        require_choice("preaggregation", name, PREAGGREGATIONS)
    f = require_whole("byzantine", byzantine, at_least=0)
    require_whole("iterations", iterations, at_least=1)
    require_whole("bucket_size", bucket_size, at_least=1)
    if clip_norm is None and ("clip" in preaggregation or aggregation == "centred_clipping"):
        what = "clip" if "clip" in preaggregation else "centred_clipping"
        raise ConfigError(f"clip_norm must be set with {what!r}: the longest honest update's norm")
    norm = 0.0 if clip_norm is None else require_number("clip_norm", clip_norm, above=0)
    if aggregation == "mda" and f > MDA_BYZANTINE_MAX:
        raise ConfigError(f"byzantine must be <= {MDA_BYZANTINE_MAX} with mda, got {f}")
    if aggregation == "fltrust" and (trusted is None or {"nnm", "bucketing"} & {*preaggregation}):
        raise ConfigError(
            "fltrust needs trusted, a client's id, and single updates: no nnm or bucketing"
        )
    rules: dict[str, tuple[Sequence[Mixing], Reduction | None, int]] = {
        "mean": ([centres.mean()], None, 1),
        "median": ([], coordinates.median, 2 * f + 1),
        "trimmed_mean": ([], coordinates.trimmed_mean(f), 2 * f + 1),
        "geometric_median": ([centres.geometric_median(iterations)], None, 2 * f + 1),
        "centred_clipping": (
            [centres.centred_clipping(iterations, norm_l2=norm)],
            None,
            2 * f + 1,
        ),
        "krum": ([selection.krum(f)], None, 2 * f + 3),
        "multi_krum": ([selection.multi_krum(f)], None, 2 * f + 3),
        "bulyan": ([selection.bulyan_selection(f)], coordinates.mean_around_median(f), 4 * f + 3),
        "mda": ([selection.minimum_diameter(f)], None, 2 * f + 1),
        "fltrust": ([centres.fltrust(trusted or 0)], None, 2),
    }
    if weigh is not None:
        rules[aggregation] = [_weighed(weigh, aggregation, f)], None, 2 * f + 1
    mixings, reduce, clients_min = rules[aggregation]
    before = {
        "clip": mixing.clipping(norm),
        "adaptive_clip": mixing.adaptive_clipping(f),
        "nnm": mixing.nearest_neighbour_mixing(f),
        "bucketing": mixing.bucketing(bucket_size),
    }
    for name in reversed(preaggregation):
        if name == "bucketing":
            clients_min = bucket_size * (clients_min - 1) + 1
        elif name != "clip":
            clients_min = max(clients_min, 2 * f + 1)
    return AggregationRule(
        name=" + ".join([*preaggregation, aggregation]),
        mixings=[*(before[name] for name in preaggregation), *mixings],
        reduce=reduce,
        clients_min=clients_min,
    )


def _weighed(weigh: Weigh, name: str, byzantine: int) -> Mixing:
    """Return the mixing that ends with the sum of the rows, weighted by a function of an app's own."""

    def mix(rows: Geometry) -> Reals:
        try:
            found = np.asarray(weigh(rows, byzantine=byzantine))
        except Exception as error:  # the app's own function
            raise RunError(f"robust.aggregation {name!r} failed: {error!r}") from error
        if found.dtype.kind not in "fiu" or found.shape != (rows.count,):
            raise RunError(
                f"robust.aggregation {name!r} returned {found.dtype} {found.shape}; return a number for "
                f"each of the {rows.count} updates"
            )
        if not np.isfinite(found).all():
            raise RunError(f"robust.aggregation {name!r} returned weights that are not finite")
        return found.astype(np.float64)[None]

    return mix
