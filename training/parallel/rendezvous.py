"""Where ranks meet: torch's process group, on the loopback network alone, with bounded waits."""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import FileStore, Store

from ...machine.accelerators import is_accelerator
from .ddp import Ddp
from .parallelism import Parallelism
from .plan import ParallelPlan
from .stages import Stages

__all__ = ["file_store", "is_lost_rank", "join", "leave"]

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def join(
    plan: ParallelPlan, rank: int, store: Store, *, stages: Stages | None = None
) -> Parallelism:
    """Join the group as a rank; returns when all have joined.

    `store` is one that no group has used before, `stages` the task's list.

    Raises:
        RuntimeError: one of them did not come in time.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = LOOPBACK
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # a lost rank is then an exception here too
    device = plan.devices[rank]
    if is_accelerator(device):
        torch.accelerator.set_device_index(device)
    dist.init_process_group(
        plan.backend,
        store=store,
        rank=rank,
        world_size=plan.ranks,
        timeout=timedelta(seconds=plan.timeout_s),
    )
    dist.barrier()
    return _parallelism(plan, rank, device, stages)


def _parallelism(plan: ParallelPlan, rank: int, device: str, stages: Stages | None) -> Parallelism:
    """Return a rank's `Parallelism`; the modules of torch that it needs are imported here."""
    me = rank, plan.ranks, device
    if plan.kind == "ddp":
        return Ddp(*me, timeout_s=plan.timeout_s, one_memory=not plan.hosts)
    if plan.kind == "tensor":
        from .tensor import Tensor

        return Tensor(*me)
    from .copies import Copies

    copies = Copies(
        rank, plan.ranks, torch.device(device), count=plan.copies, timeout_s=plan.timeout_s
    )
    if plan.kind == "fsdp":
        from .fsdp import Fsdp

        return Fsdp(*me, copies=copies)
    from .pipeline import Pipeline

    return Pipeline(*me, copies=copies, schedule=plan.schedule, stages=stages)


def file_store(path: Path, ranks: int) -> Store:
    """Return the store of ranks on one machine, in a file that no group has used before."""
    return FileStore(str(path), ranks)


def leave() -> None:
    """Leave the group."""
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def is_lost_rank(error: BaseException) -> bool:
    """Say whether an exception means that another rank is gone or hangs, rather than an error of
    the app."""
    if isinstance(error, dist.DistError | ConnectionError | EOFError | TimeoutError):
        return True
    text = str(error)
    words = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Timed out")
    return isinstance(error, RuntimeError) and any(word in text for word in words)
