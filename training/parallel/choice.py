"""What `parallel = "auto"` chooses, and why: a rule on sizes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["choose"]

COPIES = 4
"""Params, gradients and Adam's two moments."""
FILLED_MAX = 0.7
"""How much of a GPU these may fill; activations need the rest."""


def choose(
    devices: Sequence[str], model_bytes: int, free_bytes: Callable[[str], int | None]
) -> tuple[str, int, str]:
    """Return a strategy, the number of copies of the model that train together, and why.

    Gradients that are added up over all GPUs cost least, and params that are gathered for every
    pass cost most; so a copy is spread over no more GPUs than it needs. "tensor", "pipeline" and
    "data_parallel" are never chosen: the first two depend on the layers and on the links between
    the GPUs, and the last is slower than "ddp" wherever both work.

    Units: `model_bytes` is the size of the params; `free_bytes` of a device is asked for GPUs only,
    and None where torch does not know it.
    """
    count = len(devices)
    if count == 1:
        return "none", 1, "there is one device"
    if devices[0] == "cpu":
        return "ddp", 1, f"there are {count} processes in one memory"
    needed, free = COPIES * model_bytes, [free_bytes(device) for device in devices]
    known = [each for each in free if each is not None]
    if len(known) < count:
        return "ddp", 1, f"torch does not know how much memory {devices[0]} has"
    least = min(known)
    room = FILLED_MAX * least
    sizes = f"training needs about {needed / 1e9:.1f} GB for params, gradients and optimizer"
    if needed <= room:
        return "ddp", 1, f"{sizes}, and each of {count} GPUs has {least / 1e9:.1f} GB free"
    more = f"{sizes}, more than {FILLED_MAX:.0%} of the {least / 1e9:.1f} GB free"
    for size in range(2, count // 2 + 1):
        if count % size == 0 and needed / size <= room:
            return "fsdp", count // size, f"{more}; it fits {size} GPUs, so each copy has as many"
    return "fsdp", 1, more
