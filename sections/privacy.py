"""[privacy]: what protects the clients beyond their data staying where it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..settings import setting

__all__ = ["DifferentialPrivacyConfig", "PrivacyConfig", "SecureAggregationConfig"]

_SECURE = {"enabled": (True,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureAggregationConfig:
    """[privacy.secure_aggregation]: the server sees only sums of updates."""

    enabled: bool = setting(
        False, "whether it is used; docs/secure-aggregation.md says against whom"
    )
    corrupt_fraction: float = setting(
        0.33,
        "so many of a cohort may collude with the server and learn nothing",
        at_least=0,
        below=1,
        only=_SECURE,
    )
    dropout_fraction: float = setting(
        0.3, "so many of a cohort may drop out of a round", at_least=0, below=1, only=_SECURE
    )
    clip: float = setting(
        1.0,
        "the largest change of a single param by a client; larger ones are clipped",
        above=0,
        at_most=1e6,
        only=_SECURE,
    )
    value_bits: int = setting(
        16, "bits of a clipped change, before it is summed", at_least=2, at_most=24, only=_SECURE
    )
    bits: int = setting(
        32, "bits of a sum, and of a value on the wire", at_least=8, at_most=32, only=_SECURE
    )
    weight_max: int | None = setting(
        None,
        "a client with more examples counts as this many; if absent, as many as leave room for "
        "the cohort: 2^(bits - value_bits) divided by it",
        at_least=1,
        at_most=1 << 24,
        only=_SECURE,
    )
    metrics_max: float = setting(
        100.0,
        "the largest metric of a client, and change of an integer param; larger ones are clipped",
        above=0,
        at_most=1e9,
        only=_SECURE,
    )
    group_size: int | None = setting(
        None,
        "a sum for each group of at least so many clients, drawn at random every round: a "
        "strategy that needs single updates takes the groups'; if absent one sum of the cohort",
        at_least=3,
        at_most=10_000,
        only=_SECURE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentialPrivacyConfig:
    """[privacy.differential_privacy]: noise bounds what a model tells about one client."""

    enabled: bool = setting(
        False,
        "whether it is used; true is not available in this version",
        choices=(False,),
        unavailable={
            True: "is not available in this version of Meadow, so the model would carry no "
            "guarantee; set it to false if that is acceptable"
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig:
    """[privacy]: what protects the clients beyond their data staying where it is."""

    secure_aggregation: SecureAggregationConfig = field(default_factory=SecureAggregationConfig)
    differential_privacy: DifferentialPrivacyConfig = field(
        default_factory=DifferentialPrivacyConfig
    )
