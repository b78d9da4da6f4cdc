"""`arrays`: data that are in memory already."""

from __future__ import annotations

from collections.abc import Sequence

from .pair import Pair, Values, make_pair

__all__ = ["arrays"]


def arrays(
    inputs: Values,
    targets: Values,
    *,
    groups: Values | None = None,
    classes: Sequence[str] = (),
    scale: float | None = None,
) -> Pair:
    """Return NumPy arrays, lists or tensors as a pair of checked tensors.

    Shapes: `inputs` (samples, ...); `targets` (samples, ...); `groups` (samples,), any values.
    Guarantees: inputs are float32 if they were float64 or have a `scale`, by which they are then
        divided; targets are int64 or float32. What needs no conversion shares its memory.
    Raises:
        DataError: they are empty, of different lengths, no numbers, or not finite.
    """
    return make_pair(inputs, targets, where="data", groups=groups, classes=classes, scale=scale)
