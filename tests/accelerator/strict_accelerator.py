"""What torch asks of the strict accelerator in Python; torch imports it by its entry point.

It lies beside the library that is made of strict_accelerator.cpp, in a folder that is on PYTHONPATH.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

DEVICES = 2


def load() -> None:
    """Make the devices "strict:0" and "strict:1" known to torch."""
    torch.ops.load_library(str(Path(__file__).with_name("strict_operations.so")))
    torch.utils.rename_privateuse1_backend("strict")
    torch._register_device_module("strict", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    dist.Backend.register_backend("strictgloo", StagedGroup, devices=["strict"])


def is_available() -> bool:
    """Whether tests want it: STRICT_ACCELERATOR=0 hides it."""
    return os.environ.get("STRICT_ACCELERATOR") != "0"


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return DEVICES if is_available() else 0


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device: Any) -> None:
    torch.accelerator.set_device_index(device)


def synchronize(device: Any = None) -> None:
    torch.accelerator.synchronize(device)


class Finished(dist.Work):
    """A collective whose outcome is copied to the device once somebody waits for it."""

    def __init__(self, work: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._work, self._pairs = work, pairs

    def wait(self, timeout: Any = None) -> bool:
        if self._work is not None:
            self._work.wait()
            for on_device, staged in self._pairs:
                on_device.detach().copy_(staged)
            self._work = None
        return True

    def get_future(self) -> Any:
        self.wait()
        future: Any = torch.futures.Future()
        future.set_result([on_device for on_device, _ in self._pairs])
        return future


class StagedGroup(dist.ProcessGroup):
    """gloo, for tensors of the strict accelerator: they are staged in the CPU's memory."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        return "strictgloo"

    @property
    def group_name(self) -> str:
        return str(dist.distributed_c10d._world.pg_names[self])

    def broadcast(self, tensors: Any, opts: Any) -> Finished:
        staged = [tensor.detach().cpu() for tensor in tensors]
        return Finished(self._gloo.broadcast(staged, opts), [*zip(tensors, staged, strict=True)])

    def allreduce(self, tensors: Any, opts: Any) -> Finished:
        staged = [tensor.detach().cpu() for tensor in tensors]
        return Finished(self._gloo.allreduce(staged, opts), [*zip(tensors, staged, strict=True)])

    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Finished:
        staged = [[torch.empty_like(each, device="cpu") for each in some] for some in outputs]
        work = self._gloo.allgather(staged, [tensor.cpu() for tensor in inputs], opts)
        return Finished(
            work,
            [
                pair
                for pairs in zip(outputs, staged, strict=True)
                for pair in zip(*pairs, strict=False)
            ],
        )

    def all_gather_single(self, output: Any, given: Any, opts: Any) -> Finished:
        return self.allgather([[*output.chunk(self.size())]], [given], opts)

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any) -> Finished:
        total, all_reduce = given.cpu(), dist.AllreduceOptions()
        all_reduce.reduceOp = opts.reduceOp
        work = self._gloo.allreduce([total], all_reduce)
        return Finished(work, [(output, total.chunk(self.size())[self.rank()])])

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Finished:
        staged = [torch.empty_like(tensor, device="cpu") for tensor in outputs]
        given = [[tensor.cpu() for tensor in some] for some in inputs]
        return Finished(
            self._gloo.scatter(staged, given, opts), [*zip(outputs, staged, strict=True)]
        )

    def barrier(self, opts: Any) -> Finished:
        return Finished(self._gloo.barrier(opts), [])

    def send(self, tensors: Any, rank: int, tag: int) -> Finished:
        return Finished(self._gloo.send([tensor.cpu() for tensor in tensors], rank, tag), [])

    def recv(self, tensors: Any, rank: int, tag: int) -> Finished:
        staged = [torch.empty_like(tensor, device="cpu") for tensor in tensors]
        return Finished(self._gloo.recv(staged, rank, tag), [*zip(tensors, staged, strict=True)])


def _index(device: Any) -> int:
    index = device if isinstance(device, int) else torch.device(device).index
    return -1 if index is None else index


def get_rng_state(device: Any = "strict") -> torch.Tensor:
    return torch.ops.strict.generator_state(_index(device))


def set_rng_state(state: torch.Tensor, device: Any = "strict") -> None:
    torch.ops.strict.set_generator_state(_index(device), state)


def manual_seed(seed: int) -> None:
    index = current_device()
    set_rng_state(torch.Generator(f"strict:{index}").manual_seed(seed).get_state(), index)


def manual_seed_all(seed: int) -> None:
    for index in range(DEVICES):
        set_rng_state(torch.Generator(f"strict:{index}").manual_seed(seed).get_state(), index)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]
