"""How much memory a round takes, before it has run: of the server's processes, and of one client's.

Two parts: what the programs take before there is a model, which is measured here, as it depends on the
installed torch; and copies of the params, which were counted on processes that ran
(benchmarks/results/2026-11-24-two-virtual-cores.md, "Memory of a plan"). Pages of files of tensors that
a process reads or writes are counted: they are of its resident set, as long as there is room.
Not counted, as only a round shows it: the client's data, the activations of a batch, an accelerator.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...compression.terms import CompressionTerms
from ...config.rules.strategy import entry_of_config
from ...config.sections.model import Config
from ...strategies.algorithms.algorithm import Algorithm, Params, State
from ...strategies.algorithms.mean import MeanAggregator

__all__ = ["RoundMemory", "memory_of", "resident_bytes"]

DAEMON_BYTES, AGENT_BYTES = 115_000_000, 120_000_000
"""With a few clients; neither grows with the model."""
TORCH_BYTES = 270_000_000
"""Of a process that has imported torch, where the system does not say it: torch 2 without accelerators."""
TRAINED = 2
"""Copies of the params at a client: the module and its gradients."""
MEANT = 2
"""Copies at the server: the params and their mean; the first ones and a module of them."""
PER_SLOT = 2.5
"""Copies of each slot of the server's optimizer: the old, the new, and its step."""
ROWS = {"client": {"upload": 2.5, "download": 1.5}, "server": {"upload": 2.75, "download": 0.5}}
"""Copies of the params that encoding and decoding need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMemory:
    """The resident memory of a machine at the largest, in bytes."""

    server_bytes: int
    client_bytes: int


def resident_bytes() -> int:
    """Return this process's resident memory in bytes, or what one with torch usually has."""
    try:
        fields = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    except (OSError, IndexError):
        return TORCH_BYTES
    return int(fields[0]) * 1024


def memory_of(
    config: Config,
    algorithm: Algorithm,
    state: State,
    terms: CompressionTerms | None,
    *,
    program_bytes: int,
    files_bytes: int,
) -> RoundMemory | None:
    """Return a round's memory, None for what was not counted: clients that keep tensors or send more than
    params, sums under masks, private and robust means.

    `program_bytes` is what a process with torch takes without a model; `files_bytes` is what a
    client receives and sends.
    """
    private = config.privacy.differential_privacy.enabled
    plain = algorithm.of_model and not algorithm.auxiliary and not entry_of_config(config).personal
    if not plain or private or config.privacy.secure_aggregation.enabled:
        return None
    if type(algorithm.aggregator) is not MeanAggregator or config.training.optimizer.count(":"):
        return None
    size, slots = _size_of(state.params), sum(map(_size_of, state.slots.values()))
    moments = {"sgd": int(config.training.momentum > 0), "lion": 1}.get(
        config.training.optimizer, 3
    )
    codecs = {} if terms is None else {"upload": terms.upload, "download": terms.download}
    used = [way for way, codec in codecs.items() if codec != "none"]
    rows = {side: sum(copies[way] for way in used) for side, copies in ROWS.items()}
    worker = (MEANT + rows["server"]) * size + PER_SLOT * slots
    trainer = (TRAINED + moments + rows["client"]) * size + files_bytes
    return RoundMemory(
        server_bytes=DAEMON_BYTES + program_bytes + int(worker),
        client_bytes=AGENT_BYTES + program_bytes + int(trainer),
    )


def _size_of(params: Params) -> int:
    return sum(values.nbytes for values in params.values())
