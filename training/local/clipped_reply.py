"""What leaves a client under differential privacy: a clipped delta, and nothing else about its data."""

from __future__ import annotations

from flwr.app import ArrayRecord, MetricRecord

from ...errors import UpdateError
from ...flower.messages import MemoryTensor, arrays_to_params, params_to_arrays, tensors_of
from ...privacy.dp.mechanisms.clipping import Clipping, clip_update, reported_metrics
from ...privacy.dp.mechanisms.local import noisy_update
from ...privacy.dp.noise_terms import NoiseTerms
from ...randomness.entropy import system_entropy

__all__ = ["clipped_reply"]


def clipped_reply(
    before: ArrayRecord,
    trained: ArrayRecord,
    clipping: Clipping,
    noise: NoiseTerms | None,
    *,
    copy: bool = True,
) -> tuple[ArrayRecord, MetricRecord]:
    """Return a reply's params and metrics, with noise where the client adds its own.

    Without `copy` the params are clipped where they are read, once: they are `trained`'s memory.

    Every client counts once: the number of its examples, its loss and its metrics are not sent.

    Raises:
        UpdateError: the trained params are not finite, and the server adds the noise.
    """
    params = arrays_to_params(before)
    if noise is not None and noise.is_local:
        noisy = noisy_update(params, tensors_of(trained), clipping, noise, system_entropy)
        return params_to_arrays(noisy), MetricRecord({"num-examples": 1})
    try:
        tensors, within = clip_update(params, tensors_of(trained), clipping)
    except UpdateError:
        if noise is None or noise.place == "server":
            raise
        tensors, within = tensors_of(before), True  # as `noisy_update` has it
    if copy:
        tensors = {name: MemoryTensor(tensor.numpy()) for name, tensor in tensors.items()}
    return params_to_arrays(tensors), MetricRecord(
        {"num-examples": 1, **reported_metrics(clipping, within)}
    )
