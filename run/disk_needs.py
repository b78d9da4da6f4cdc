"""How much disk a run takes at its peak, at the server and at a client, from its settings and the model's form.

At the server these are checkpoints, the files of instructions, and the replies of a round, which stay until it
is committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..compression.packet import Packer
from ..compression.terms import CompressionTerms
from ..config.client_config import BLOBS_KEPT, RECEIVED_BYTES_MAX
from ..config.rules.builders import build_compression_terms
from ..config.sections.model import Config
from ..strategies.algorithms.algorithm import Params, State
from ..strategies.rounds.checks import forms_of
from .checkpoints import CHECKPOINTS_KEPT

__all__ = ["DiskNeeds", "bytes_of", "disk_needs", "instruction_bytes", "reply_bytes"]

REPLIES_KEPT: Final = 2
"""At a client: the newest one, and the one before while that is being written."""
BESIDE_BYTES: Final = 8_000_000
"""For databases, logs and metrics, of which ordinary runs have less."""
SUMS_TIMES: Final = 2
"""A relay answers with float64 sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskNeeds:
    """What a run's files take at most."""

    server_bytes: int
    client_bytes: int
    """Without what an app itself keeps, and for a client.toml that leaves `policy.received_bytes_max` as it is."""


def disk_needs(
    config: Config, state: State, *, sent: Params | None = None, clients: int, relays: int = 0
) -> DiskNeeds:
    """Return what rounds take in which so many clients, and relays, answer.

    `state` is that before a round; `sent` are its params with what travels beside, None if nothing does. Values are
    not looked at. Of asynchronous rounds it is not known: versions of the params wait for who works on them.
    """
    travels = state.params if sent is None else sent
    down, up = instruction_bytes(travels, config), reply_bytes(travels, config)
    params = bytes_of(state.params)
    slots = sum(bytes_of(slot) for slot in state.slots.values())
    terms = build_compression_terms(config)
    packed = terms is not None and terms.download != "none"
    rate = config.strategy.server_learning_rate
    server = (CHECKPOINTS_KEPT + 1) * (params + slots) + (clients + SUMS_TIMES * relays) * up
    if packed or (sent is not None and sent is not state.params):
        server += 2 * down  # else it is a checkpoint's file, under a second name
    if slots or rate not in (None, 1.0):
        server += params  # the mean, of which the optimizer makes a checkpoint
    others = min(BLOBS_KEPT - 1, RECEIVED_BYTES_MAX // max(1, down))
    client = (1 + others) * down + REPLIES_KEPT * up
    return DiskNeeds(server_bytes=server + BESIDE_BYTES, client_bytes=client + BESIDE_BYTES)


def instruction_bytes(params: Params, config: Config, *, slow: bool = False) -> int:
    """Return the size of params as a client receives them, over a line that is `slow` or not."""
    terms = _terms_of(config, slow=slow)
    return _encoded_bytes(params, terms, "none" if terms is None else terms.download)


def reply_bytes(params: Params, config: Config, *, slow: bool = False) -> int:
    """Return the size of params as a client sends them back; with `compression.zstd`, at most."""
    if config.privacy.secure_aggregation.enabled:
        return _masked_bytes(params, config)
    terms = _terms_of(config, slow=slow)
    return _encoded_bytes(params, terms, "none" if terms is None else terms.upload)


def bytes_of(params: Params) -> int:
    """Return the size of params in memory."""
    return sum(values.nbytes for values in params.values())


def _terms_of(config: Config, *, slow: bool) -> CompressionTerms | None:
    terms = build_compression_terms(config)
    return None if terms is None else terms.of_line(slow=slow)


def _encoded_bytes(params: Params, terms: CompressionTerms | None, kind: str) -> int:
    if terms is None or kind == "none":
        return bytes_of(params)
    return Packer(forms_of(params), terms, kind).size_bytes


def _masked_bytes(params: Params, config: Config) -> int:
    """Return the size of a masked vector: every value has the bits of the sum's modulus."""
    values = sum(each.size * (2 if each.dtype.kind == "c" else 1) for each in params.values())
    return -(-values * config.privacy.secure_aggregation.bits // 8)
