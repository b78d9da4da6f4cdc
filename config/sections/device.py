"""[device] of client.toml: what training may use of this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from ...errors import ConfigError
from ...transport.address import Address
from ..schema.rules import Rule
from ..schema.settings import setting

__all__ = ["DeviceConfig"]

SPREAD = ("auto", "ddp", "fsdp", "tensor", "pipeline", "hybrid")
PIPELINES = ("pipeline", "hybrid")
ACROSS = ("ddp", "fsdp", "hybrid")
_DEVICE = re.compile(r"(?!gpu)[a-z][a-z0-9_]{1,31}(:\d{1,3})?")

Gpus = str | int | tuple[int, ...] | None


def _numbers(gpus: Gpus) -> tuple[int, ...]:
    return gpus if isinstance(gpus, tuple) else (gpus,) if isinstance(gpus, int) else ()


def _not_different(gpus: Gpus) -> str | None:
    """Return the numbers unless they are different ones from 0."""
    numbers = _numbers(gpus)
    wrong = gpus == () or min(numbers, default=0) < 0 or len({*numbers}) < len(numbers)
    return str(list(numbers)) if wrong else None


def _other_count(processes: int | None, gpus: Gpus) -> str | None:
    """Return how many GPUs are numbered, if it is another number."""
    count = len(_numbers(gpus))
    return str(count) if count and processes not in (None, count) else None


def _no_address(text: str) -> str | None:
    """Return what is wrong with a text that is no address."""
    try:
        Address.parse(text, what="it")
    except ConfigError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """[device]: what training may use of this machine."""

    device: str = setting(
        "auto",
        'where training runs: "auto", "cpu", or an accelerator as torch names it: "cuda:0", "mps", "xpu:1"',
    )
    gpus: str | int | tuple[int, ...] | None = setting(
        None, 'instead of device, the GPUs to use: "all", a number, a list of them, or "cpu"'
    )
    parallel: Literal[
        "none", "data_parallel", "ddp", "fsdp", "tensor", "pipeline", "hybrid", "auto"
    ] = setting("none", "how a round is spread over the GPUs, or over processes of the CPU")
    processes: int | None = setting(
        None,
        "how many processes train together; one a GPU if absent",
        at_least=1,
        at_most=64,
        only={"parallel": SPREAD},
    )
    copies: int = setting(
        2,
        "how many copies of the model train together, each spread over its share of the processes",
        at_least=2,
        at_most=32,
        only={"parallel": ("hybrid",)},
    )
    copy_parallel: Literal["fsdp", "pipeline"] = setting(
        "fsdp", "how each copy is spread over its processes", only={"parallel": ("hybrid",)}
    )
    pipeline_schedule: Literal["1f1b", "gpipe"] = setting(
        "1f1b",
        'the order of a pipeline\'s passes: "1f1b" holds fewer activations; "gpipe" has all forward '
        "passes first",
        only={"parallel": PIPELINES},
    )
    rank_timeout_s: float = setting(
        300.0,
        "a process for which the others wait longer than this is replaced",
        at_least=1,
        at_most=86_400,
        only={"parallel": SPREAD},
    )
    hosts: int | None = setting(
        None,
        "how many machines of this site train together, this one included; the others join by `meadow client "
        "rank`. Only this one if absent",
        at_least=2,
        at_most=32,
        only={"parallel": ACROSS},
    )
    hosts_listen: str = setting(
        "0.0.0.0:9460",
        "HOST:PORT of this machine where the others join; it admits nobody without a certificate of "
        "`meadow client rank --invite`",
        only={"parallel": ACROSS},
    )
    hosts_wait_s: float = setting(
        60.0,
        "how long a round waits for machines that are not there; then it is trained by those that are",
        at_least=0,
        at_most=86_400,
        only={"parallel": ACROSS},
    )
    precision: Literal["run", "fp32", "bf16", "fp16"] = setting(
        "run", 'what the forward pass computes in, whatever the run says; "run" is what it says'
    )
    checkpoint_activations: bool = setting(
        False, "compute blocks again in the backward pass instead of keeping their activations"
    )
    channels_last: bool = setting(
        False, "lay out images and convolutions with the channels last, as tensor cores want it"
    )
    compile: bool = setting(
        False, "have torch compile the model, at the first batches of each size"
    )
    loader_processes: int = setting(
        0,
        "how many more processes load the items of a Dataset; tensors need none",
        at_least=0,
        at_most=64,
    )
    pin_memory: bool = setting(
        False, "copy batches to the GPU from pinned memory, while it still computes"
    )
    save_steps: int = setting(
        500,
        "steps of the optimizer after which an unfinished round is saved; 0 is never",
        at_least=0,
        at_most=10**9,
    )
    kept_warm_s: float = setting(
        600.0,
        "let the training process go, with the data in its memory, after so long without work; the next "
        "round waits for a new one",
        at_least=0,
        at_most=1e9,
    )
    threads: int = setting(1, "CPU threads of a process", at_least=1, at_most=4096)
    memory_mb_max: int | None = setting(
        None,
        "training is stopped beyond this much memory, of all its processes; no limit if absent",
        at_least=64,
    )

    rules: ClassVar[tuple[Rule[DeviceConfig], ...]] = (
        Rule(
            ("device",),
            "a name that torch knows",
            lambda device: not _DEVICE.fullmatch(device.device),
            'must be "auto", "cpu", or an accelerator as torch names it, as "cuda", "cuda:1" or '
            '"mps", got {device!r}',
        ),
        Rule(
            ("gpus",),
            '"all", "cpu", or different numbers from 0',
            lambda device: isinstance(device.gpus, str) and device.gpus not in ("all", "cpu"),
            'must be "all", "cpu", a number or a list of numbers, got {gpus!r}',
        ),
        Rule(
            ("gpus",),
            "each GPU once",
            lambda device: _not_different(device.gpus),
            "must be different numbers >= 0, got {found}; GPUs count from 0",
        ),
        Rule(
            ("gpus", "device"),
            "not beside `device`",
            lambda device: device.gpus is not None and device.device != "auto",
            '= {gpus!r} says again what device = "{device}" says; remove one',
        ),
        Rule(
            ("parallel", "device"),
            'not beside a `device` but "cpu"',
            lambda device: device.parallel != "none" and device.device not in ("auto", "cpu"),
            '= "{parallel}" is for several processes, and device = "{device}" is for one; say gpus = '
            '"all" instead of device',
        ),
        Rule(
            ("hosts_listen",),
            "HOST:PORT",
            lambda device: _no_address(device.hosts_listen),
            "is wrong: {found}",
        ),
        Rule(
            ("hosts", "copy_parallel"),
            'copies of "fsdp" only',
            lambda device: (
                device.hosts is not None
                and device.parallel == "hybrid"
                and device.copy_parallel != "fsdp"
            ),
            '= {hosts} puts a copy of the model on each host, spread by "fsdp"; remove copy_parallel = '
            '"{copy_parallel}"',
        ),
        Rule(
            ("processes", "gpus"),
            "as many as `gpus` lists, where it lists any",
            lambda device: _other_count(device.processes, device.gpus),
            "= {processes} must be the number of device.gpus, {found}: one process a GPU; remove it",
        ),
    )
