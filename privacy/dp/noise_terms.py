"""The noise that an instruction announces for its round: who adds it, and its multiplier."""

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
    """Who adds the noise, and the multiplier of everything that the round releases together.

    "server": the server adds Gaussian noise to the sum. "distributed": the clients add Skellam
    noise to the sum under secure aggregation; "distributed_gaussian": likewise, discrete Gaussian.
    "local_gaussian", "local_laplace": each client adds noise to its own delta.
    """

    source: NoiseSource = "server"
    noise_multiplier: float

    @property
    def event(self) -> GaussianEvent | ConcentratedEvent | LaplaceEvent:
        """The event that the round releases for a client that takes part."""
        if self.is_distributed:
            return ConcentratedEvent(noise_multiplier=self.noise_multiplier)
        if self.source == "local_laplace":
            return LaplaceEvent(noise_multiplier=self.noise_multiplier)
        return GaussianEvent(noise_multiplier=self.noise_multiplier)

    @property
    def is_distributed(self) -> bool:
        """Whether each client adds a share of the noise, within a secure sum."""
        return self.source.startswith("distributed")

    @property
    def place(self) -> Literal["client", "distributed", "server"]:
        """The place where the noise is added."""
        if self.is_local:
            return "client"
        return "distributed" if self.is_distributed else "server"

    @property
    def law(self) -> Law:
        """The distribution of the noise within secure sums."""
        return "discrete_gaussian" if self.source == "distributed_gaussian" else "skellam"

    @property
    def is_local(self) -> bool:
        """Whether each client's own reply is private."""
        return self.source.startswith("local")

    def record(self) -> dict[str, float | str]:
        """Return the terms as the entries of an instruction's ConfigRecord."""
        return {NOISE_KEY: self.noise_multiplier, SOURCE_KEY: self.source}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> NoiseTerms | None:
        """Return the noise that an instruction's ConfigRecord announces, None if it has none.

        Raises:
            ProtocolError: the source is unknown, or the multiplier is out of its bounds.
        """
        if NOISE_KEY not in record:
            return None
        noise_multiplier, source = record[NOISE_KEY], record.get(SOURCE_KEY, "server")
        if source not in SOURCES:
            raise ProtocolError(f"{SOURCE_KEY} must be one of {SOURCES}, got {source!r:.80}")
        require_noise_terms(NOISE_KEY, noise_multiplier)
        return cls(source=source, noise_multiplier=noise_multiplier)


NUMBER_MIN, NUMBER_MAX = 1e-12, 1e12
"""The bounds of clip norms and noise multipliers."""
RATE_MIN = 1e-9
"""The smallest sampling rate; the largest is 1."""
STEPS_MAX = 1_000_000
"""The most steps of DP-SGD in a round."""


def require_noise_terms(
    key: str, value: object, *, at_least: float = NUMBER_MIN, at_most: float = NUMBER_MAX
) -> float:
    """Return a number from an instruction's ConfigRecord.

    Raises:
        ProtocolError: it is not a float within the bounds.
    """
    if type(value) is not float or not at_least <= value <= at_most:
        raise ProtocolError(
            f"{key} must be a number from {at_least:g} to {at_most:g}, got {value!r:.80}"
        )
    return value
