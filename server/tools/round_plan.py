"""What a round costs before it has run: the bytes of its tensors, and how long they travel.

The bytes follow from the model and the settings: what the algorithm sends, and gets back under the same
names and shapes; how it is encoded each way; and what a secure sum adds. Names and sizes in front of
the tensors, some hundred bytes a message, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...apps.folder import App
from ...config.rules.builders import (
    build_algorithm,
    build_asynchrony,
    build_compression_terms,
)
from ...errors import ConfigError
from ...run.disk_needs import DiskNeeds, disk_needs, instruction_bytes, reply_bytes
from ...strategies.algorithms.algorithm import Params
from ...strategies.rounds.cohort import size_of_cohort
from ..daemon.blob_service import fair_chunk_bytes, window_bytes
from ..daemon.lines import SLOW_BYTES_PER_S
from .memory_plan import RoundMemory, memory_of, resident_bytes

__all__ = ["AccessLink", "RoundCosts", "round_costs"]

HEADERS = 0.05
"""The share of a link that Ethernet, IP, TCP and TLS take."""
CALLS = 3
"""Round trips of a transfer: what announces it, its request, and its confirmation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLink:
    """A client's line: its rate in bytes per second, the same both ways, and its round trip in seconds."""

    bytes_per_s: float
    round_trip_s: float

    @property
    def is_slow(self) -> bool:
        """Whether `compression.upload = "auto"` compresses what is sent over it."""
        return self.bytes_per_s < SLOW_BYTES_PER_S

    def download_s(self, size_bytes: int) -> float:
        """Return how long a client takes to fetch so many bytes."""
        return CALLS * self.round_trip_s + size_bytes / (self.bytes_per_s * (1 - HEADERS))

    def upload_s(self, size_bytes: int, *, clients: int) -> float:
        """Return how long a client takes to send so many bytes to a server of so many `clients`.

        What a client may not send ahead of a chunk is a pause after each chunk:
        docs/decisions/0031-windows-are-shared.md.
        """
        transit = self.bytes_per_s * self.round_trip_s
        pauses = max(0.0, transit - window_bytes(clients)) / fair_chunk_bytes(clients)
        return self.download_s(size_bytes) + size_bytes / self.bytes_per_s * pauses


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """A round's bytes of one client, and how many clients it has."""

    clients: int
    cohort: int
    down_bytes: int
    up_bytes: int
    evaluated_bytes: int
    """What a client fetches besides in an evaluated round, at most; 0 without evaluation."""
    memory: RoundMemory | None = None
    """None if it is not known."""
    disk: DiskNeeds | None = None
    """What the run's files take; None if that is not known, as of asynchronous rounds."""

    @property
    def server_down_bytes(self) -> int:
        """What the server sends in a round, without evaluation."""
        return self.cohort * self.down_bytes

    @property
    def server_up_bytes(self) -> int:
        """What the server receives in a round."""
        return self.cohort * self.up_bytes


def round_costs(app: App, *, clients: int, slow: bool = False) -> RoundCosts:
    """Return what a round of an app costs with so many enrolled clients, whose lines are `slow` or not.

    Raises:
        ConfigError: what is sent depends on the clients' data or on the app's own code: it must be measured.
    """
    if app.config is None:
        raise _unknown(app, "what a Flower app sends is up to its own code")
    app = app.with_own_code()
    config = app.config
    assert config is not None
    if (terms := build_compression_terms(config)) is not None:
        terms = terms.of_line(slow=slow)
    if terms is not None and terms.zstd:
        raise ConfigError("compression.zstd: what it leaves depends on the values; set it to false")
    algorithm = build_algorithm(config)
    if algorithm.lengths_max:
        text = f"what clients of {algorithm.name} send grows with their data and with the rounds"
        raise _unknown(app, text)
    from ...training.module_params import build_module, params_of_module  # imports torch

    program_bytes = resident_bytes()
    params: Params = {}
    if algorithm.of_model:
        params = params_of_module(build_module(app.load_task(), config.run.seed), copy=False)
    state = algorithm.init(params)
    algorithm = algorithm.at(state)
    sent = algorithm.sent(state)
    evaluated = algorithm.evaluated(state) if algorithm.evaluated is not None else {}
    down_bytes = instruction_bytes(sent, config, slow=slow)
    up_bytes = reply_bytes(sent, config, slow=slow)
    cohort = size_of_cohort(clients, cohort=config.run.cohort, at_least=config.run.min_clients)
    memory = memory_of(
        config, algorithm, state, terms,
        program_bytes=program_bytes, files_bytes=down_bytes + up_bytes,
    )  # fmt: skip
    disk = None
    if build_asynchrony(config) is None:
        disk = disk_needs(config, state, sent=sent, clients=cohort)
    return RoundCosts(
        clients=clients,
        cohort=cohort,
        down_bytes=down_bytes,
        up_bytes=up_bytes,
        evaluated_bytes=instruction_bytes(evaluated, config, slow=slow)
        if config.evaluation.every
        else 0,
        memory=memory,
        disk=disk,
    )


def _unknown(app: App, why: str) -> ConfigError:
    return ConfigError(
        f"{app.name}: {why}: see `bytes_sent` and `bytes_received` in metrics.jsonl of `meadow simulate` with "
        "--rounds 2"
    )
