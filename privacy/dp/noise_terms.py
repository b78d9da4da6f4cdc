"""What an instruction says of its round's noise: who adds it, and how much it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import ProtocolError
from .accounting.events import ConcentratedEvent, GaussianEvent, LaplaceEvent
from .mechanisms.integer_sum import Law

__all__ = [
    "NOISE_KEY",
    "NUMBER_MAX",
    "NUMBER_MIN",
    "RATE_MIN",
    "SOURCES",
    "STEPS_MAX",
    "NoiseSource",
    "NoiseTerms",
    "require_noise_terms",
]

NoiseSource = Literal[
    "server", "distributed", "distributed_gaussian", "local_gaussian", "local_laplace"
]
SOURCES = ("server", "distributed", "distributed_gaussian", "local_gaussian", "local_laplace")
NOISE_KEY = "dp-noise-multiplier"
SOURCE_KEY = "dp-noise"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseTerms:
    """Who adds the noise, and its multiplier: of everything that the round releases.

    "server": Gaussian, on the sum, by the server. "distributed": Skellam, on the sum, by its
    clients under secure aggregation; "distributed_gaussian": likewise, discrete Gaussian.
    "local_gaussian", "local_laplace": on every client's change, by the client.
    """

    source: NoiseSource = "server"
    multiplier: float

    @property
    def event(self) -> GaussianEvent | ConcentratedEvent | LaplaceEvent:
        """What the round releases of a client that takes part."""
        if self.is_distributed:
            return ConcentratedEvent(noise_multiplier=self.multiplier)
        if self.source == "local_laplace":
            return LaplaceEvent(noise_multiplier=self.multiplier)
        return GaussianEvent(noise_multiplier=self.multiplier)

    @property
    def is_distributed(self) -> bool:
        """Whether each client adds its share, within a secure sum."""
        return self.source.startswith("distributed")

    @property
    def place(self) -> Literal["client", "distributed", "server"]:
        """Where the noise is added."""
        if self.is_local:
            return "client"
        return "distributed" if self.is_distributed else "server"

    @property
    def law(self) -> Law:
        """How the noise within secure sums is distributed."""
        return "discrete_gaussian" if self.source == "distributed_gaussian" else "skellam"

    @property
    def is_local(self) -> bool:
        """Whether each client's own answer is private."""
        return self.source.startswith("local")

    def record(self) -> dict[str, float | str]:
        """Return what clients are told."""
        return {NOISE_KEY: self.multiplier, SOURCE_KEY: self.source}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> NoiseTerms | None:
        """Return what an instruction's ConfigRecord announces, None if it has no noise.

        Raises:
            ProtocolError: it announces what there is not.
        """
        if NOISE_KEY not in record:
            return None
        multiplier, source = record[NOISE_KEY], record.get(SOURCE_KEY, "server")
        if source not in SOURCES:
            raise ProtocolError(f"{SOURCE_KEY} must be one of {SOURCES}, got {source!r:.80}")
        require_noise_terms(NOISE_KEY, multiplier)
        return cls(source=source, multiplier=multiplier)


NUMBER_MIN, NUMBER_MAX = 1e-12, 1e12
"""Of clips and noise multipliers."""
RATE_MIN = 1e-9
"""Of sampling rates, which are 1 at most."""
STEPS_MAX = 1_000_000
"""How many steps of DP-SGD a round may have."""


def require_noise_terms(
    key: str, value: object, *, at_least: float = NUMBER_MIN, at_most: float = NUMBER_MAX
) -> float:
    """Return a number that was announced.

    Raises:
        ProtocolError: it is no float within the bounds.
    """
    if type(value) is not float or not at_least <= value <= at_most:
        raise ProtocolError(
            f"{key} must be a number from {at_least:g} to {at_most:g}, got {value!r:.80}"
        )
    return value
