"""Reads the noise that an instruction announces for its round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...config.client_config import PolicyConfig
from ...errors import MeadowError
from ...privacy.dp.accounting.events import StepsEvent
from ...privacy.dp.example_level import ExampleTerms
from ...privacy.dp.mechanisms.clipping import Clipping
from ...privacy.dp.noise_terms import NoiseTerms
from ...privacy.secagg.terms.announcement import NODE_BYTES
from ...privacy.secagg.terms.terms import RECORD, is_secure
from ...training.settings import TrainingSettings
from ...transport.entries import unpack_entries
from ...transport.fleet_pb2 import Instruction

__all__ = [
    "announced_steps",
    "announcement_of",
    "charged_noise",
    "charged_steps",
    "hides_from_server",
    "noise_terms_of",
]

CONFIG_RECORD = "config"


def noise_terms_of(instruction: Instruction) -> NoiseTerms | None:
    """Return the noise that an instruction announces, None if its round has none.

    Without a secure sum, the noise that clients add within secure sums does not count.
    """
    entries = announcement_of(instruction)
    try:
        noise = NoiseTerms.of(entries) if Clipping.of(entries) is not None else None
    except MeadowError:
        return None
    secure = is_secure(instruction.envelope.metadata.message_type)
    if noise is not None and noise.is_distributed != secure:
        return None
    return noise


def announced_steps(instruction: Instruction) -> StepsEvent | None:
    """Return the steps of DP-SGD that an instruction requests, None if it requests none."""
    entries = announcement_of(instruction)
    try:
        terms = ExampleTerms.of(entries)
        return None if terms is None else terms.event(TrainingSettings.of(entries).epochs)
    except MeadowError:
        return None


def charged_steps(instruction: Instruction, policy: PolicyConfig) -> StepsEvent | None:
    """Return the steps of DP-SGD that the owner's ledger counts; as `charged_noise`."""
    trusted = not policy.noise or "client" in policy.noise
    return announced_steps(instruction) if trusted else None


def announcement_of(instruction: Instruction) -> Mapping[str, Any]:
    """Return the privacy terms of an instruction, empty if they cannot be read."""
    return _record(instruction, CONFIG_RECORD) if instruction.differential_privacy else {}


def _record(instruction: Instruction, name: str) -> Mapping[str, Any]:
    """Return an instruction's ConfigRecord, empty if there is not one of this name."""
    records = [each for each in instruction.envelope.records if each.name == name]
    try:
        return unpack_entries(records[0].configs.entries) if len(records) == 1 else {}
    except MeadowError:
        return {}


def hides_from_server(instruction: Instruction) -> bool:
    """Return whether clients add the noise themselves; then no text about data may be sent."""
    noise = noise_terms_of(instruction)
    return announced_steps(instruction) is not None or (
        noise is not None and noise.place != "server"
    )


def charged_noise(instruction: Instruction, policy: PolicyConfig) -> NoiseTerms | None:
    """Return the noise that the owner's ledger counts, None if there is none.

    If the owner restricts in `policy.noise` who adds it, announced noise of others does not count.
    Noise within secure sums is the sum of the clients' shares, and a server can control all other
    clients. Unless the owner sets `known_peers` or `min_colluders`, only this client's own share
    counts: `noise_multiplier` / sqrt(clients).
    """
    noise = noise_terms_of(instruction)
    if noise is None or (policy.noise and noise.place not in policy.noise):
        return None
    if not noise.is_distributed or policy.known_peers or policy.min_colluders:
        return noise
    nodes = _record(instruction, RECORD).get("nodes")
    clients = len(nodes) // NODE_BYTES if isinstance(nodes, bytes) else 0
    if not clients:
        return None
    return replace(noise, noise_multiplier=noise.noise_multiplier / math.sqrt(clients))
