"""On which devices a round is trained: decided from the owner's [device] and the devices present."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import distributed as dist

from ...config.sections.device import DeviceConfig
from ...errors import DataError
from ...machine.accelerators import accelerators, free_bytes
from .across import BACKEND
from .choice import choose
from .hosts import Host

__all__ = ["ParallelPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """How a round is spread over processes.

    Attributes:
        kind: the parallelism strategy; "none" and "data_parallel" are one process.
        devices: the device of each rank.
        timeout_s: how long a rank waits for the others.
        reason: why "auto" chose this; empty under another setting.
        copies: how many copies of the model train together; with more than one, `kind` is that
            of each copy.
        schedule: the order of a pipeline's passes.
        hosts: how many of the ranks each machine has, this one first; empty without others.
    """

    kind: str
    devices: tuple[str, ...]
    timeout_s: float
    reason: str = ""
    copies: int = 1
    schedule: str = "1f1b"
    hosts: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        """How many processes train together."""
        return 1 if self.kind == "data_parallel" else len(self.devices)

    @property
    def sharded(self) -> bool:
        """Whether each rank holds a part of the params only."""
        return self.kind in ("fsdp", "tensor")

    @property
    def backend(self) -> str:
        """The collective library of the ranks: NCCL on CUDA's devices, gloo on the CPU and over
        several machines.

        Raises:
            DataError: torch has none for these devices.
        """
        if self.hosts:
            return BACKEND
        try:
            return dist.get_default_backend_for_device(self.devices[0])
        except ValueError:
            raise DataError(
                f"torch cannot exchange tensors between processes on {self.devices[0]}; set "
                'parallel = "none" or "data_parallel" in [device]'
            ) from None

    @property
    def text(self) -> str:
        """The devices, as text for messages."""
        if self.kind == "none":
            return self.devices[0]
        names = sorted({*self.devices})
        copies = f", in {self.copies} copies" if self.copies > 1 else ""
        hosts = f" on {len(self.hosts)} hosts" if self.hosts else ""
        return f"{', '.join(names)} as {self.ranks} ranks{hosts} with {self.kind}{copies}"

    def host_of(self, rank: int) -> int:
        """Return the machine that a rank is on; 0 is this one."""
        before = 0
        for host, count in enumerate(self.hosts):
            before += count
            if rank < before:
                return host
        return 0

    def over(self, others: Sequence[Host], *, copied: bool) -> ParallelPlan:
        """Return the plan for this machine and these others; with `copied` each has a copy of the
        model.

        Raises:
            DataError: they do not fit together.
        """
        devices = (*self.devices, *(device for other in others for device in other.devices))
        kinds = {device.partition(":")[0] for device in devices}
        if len(kinds) > 1:
            there = ", ".join(f"{other.name} has {other.devices[0]}" for other in others)
            raise DataError(
                f"hosts that train together need one kind of device: this one has {self.devices[0]}, "
                f"{there}; start `meadow client rank` there with --gpus or --processes to match"
            )
        hosts = (len(self.devices), *(len(other.devices) for other in others))
        if copied and len({*hosts}) > 1:
            raise DataError(
                f'device.parallel = "hybrid" is one copy of the model a host, so each needs as many '
                f"processes; they have {', '.join(map(str, hosts))}"
            )
        copies = len(hosts) if copied else 1
        return replace(self, devices=devices, hosts=hosts, copies=copies)

    @classmethod
    def single(cls, device: str) -> ParallelPlan:
        """Return the plan of one process on a device."""
        return cls(kind="none", devices=(device,), timeout_s=0.0)

    @classmethod
    def of(
        cls,
        config: DeviceConfig,
        *,
        model_bytes: int = 0,
        there: Sequence[str] | None = None,
        free: Callable[[str], int | None] = free_bytes,
    ) -> ParallelPlan:
        """Return the plan for this machine.

        `model_bytes` is the size of the params, by which "auto" decides. `there` are the machine's
        accelerators, and `free` the free bytes of one; by default torch is asked for both.

        Raises:
            DataError: an accelerator that the owner names is not there, or the number of processes is
                neither configured nor implied by the devices.
        """
        gpus = _gpus(config, accelerators() if there is None else there)
        if config.parallel == "none":
            return cls.single(gpus[0] if gpus else "cpu")
        if config.parallel == "data_parallel" and not gpus:
            raise DataError(
                'device.parallel = "data_parallel" is one process for several GPUs, and there are '
                'none; say "ddp", with device.processes'
            )
        if gpus:
            ranks = config.processes or len(gpus)
            if ranks > len(gpus):
                raise DataError(
                    f"device.processes = {ranks}, and there are {len(gpus)} GPUs to use; one "
                    "process a GPU is the most"
                )
            devices = tuple(gpus[:ranks])
        else:
            devices = ("cpu",) * _processes(config)
        kind, copies, reason = _configured(config, devices)
        if kind == "auto":
            kind, copies, reason = choose(devices, model_bytes, free)
        return cls(
            kind=kind,
            devices=devices,
            timeout_s=config.rank_timeout_s,
            reason=reason,
            copies=copies,
            schedule=config.pipeline_schedule,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> ParallelPlan:
        """Return the plan that `to_json` gave."""
        return cls(
            **{**stated, "devices": tuple(stated["devices"]), "hosts": tuple(stated["hosts"])}
        )


def _gpus(config: DeviceConfig, there: Sequence[str]) -> Sequence[str]:
    """Return the accelerators to use; an empty list means the CPU."""
    if config.gpus == "cpu" or config.device == "cpu":
        return ()
    if isinstance(config.gpus, str | None):
        return there
    asked = (config.gpus,) if isinstance(config.gpus, int) else config.gpus
    missing = [gpu for gpu in asked if gpu >= len(there)]
    if missing:
        raise DataError(
            f"device.gpus names GPU {missing[0]}, and torch sees {len(there)} GPUs, counted from 0; "
            'say gpus = "all"'
        )
    return [there[gpu] for gpu in asked]


def _processes(config: DeviceConfig) -> int:
    if config.processes is None and config.parallel != "auto":
        raise DataError(
            f'device.parallel = "{config.parallel}" on the CPU needs device.processes, the '
            "number of processes: there are no GPUs to count"
        )
    return config.processes or 1


def _configured(config: DeviceConfig, devices: tuple[str, ...]) -> tuple[str, int, str]:
    """Return the strategy that the owner configured, its number of copies, and no reason."""
    if config.parallel != "hybrid":
        return config.parallel, 1, ""
    if config.hosts is not None:
        return config.copy_parallel, 1, ""  # a copy on each host
    if len(devices) % config.copies or len(devices) < 2 * config.copies:
        raise DataError(
            f"device.copies = {config.copies} copies of the model need a multiple of "
            f"{config.copies} processes, and two for each at least; there are {len(devices)}; "
            'set device.processes, or say parallel = "ddp" or "fsdp"'
        )
    return config.copy_parallel, config.copies, ""
