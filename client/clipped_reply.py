"""What leaves a client under differential privacy: a clipped change, and nothing about its data."""

from __future__ import annotations

from flwr.app import ArrayRecord, MetricRecord

from ..flower import MemoryTensor, arrays_to_params, params_to_arrays, tensors_of
from ..privacy.dp.clipping import Clipping, clip_update, reported_metrics

__all__ = ["clipped_reply"]


def clipped_reply(
    before: ArrayRecord, trained: ArrayRecord, clipping: Clipping
) -> tuple[ArrayRecord, MetricRecord]:
    """Return a reply's params and metrics.

    Every client counts once, so the number of its examples stays with it; so do loss and metrics.

    Raises:
        UpdateError: the trained params are not finite.
    """
    tensors, within = clip_update(arrays_to_params(before), tensors_of(trained), clipping)
    made = params_to_arrays(
        {name: MemoryTensor(tensor.numpy()) for name, tensor in tensors.items()}
    )
    return made, MetricRecord({"num-examples": 1, **reported_metrics(clipping, within)})
