"""What a server and its clients say to each other in a secure round: Flower messages.

    query.secure_identity   who are you?         a client's long-term public key, and a fresh nonce
    train.secure            the instruction      its public keys of the session; it has trained
    evaluate.secure         likewise             likewise; it has evaluated
    query.secure_shares     everybody's keys     shares of its secrets, sealed for their holders
    query.secure_vector     shares for it        its vector under masks
    query.secure_confirm    who is in the sum    its signature of that
    query.secure_unmask     those signatures     one share of one secret of each client

All of them have a ConfigRecord "secure", and nothing else but the instruction itself and the
masked vector, which is an array. What is inside of "message" is `secagg`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError
from .secagg import Plan, plan_secure_sum
from .secagg.topology import CLIENTS_MIN

__all__ = ["GRINDING_BITS", "MASKED", "RECORD", "SECURE_SUM_FAILED", "SecureTerms"]

RECORD = "secure"
MASKED = "masked"
"""The array of a masked vector's bytes, and the record that it is in."""
SECURE_SUM_FAILED = 1002
"""Code of the error reply of a client that is not in the sum, or of everybody without a sum."""

GRINDING_BITS = 64
"""A ring is as safe as if nobody chose it from someone who tries 2^64 of them: the server can try
as many as it computes between the last nonce that it hears and its announcement."""

METRICS_BOUND = 1e9
METRICS_COUNT_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureTerms:
    """The public numbers of a run's secure sums; see `plan_secure_sum` for most of them.

    Attributes:
        weight_max: a client with more examples counts as this many; None is the most that leaves
            room for the cohort.
        metrics: which metrics are summed up beside the params.
        metrics_max: a metric, and the change of an integer in the params, is clipped to this.
        group_size: the fewest clients of a group; None is one sum of the whole cohort.
    """

    corrupt: float = 0.33
    dropout: float = 0.3
    bits: int = 32
    value_bits: int = 16
    clip: float = 1.0
    weight_max: int | None = None
    metrics: tuple[str, ...] = ("loss",)
    metrics_max: float = 100.0
    group_size: int | None = None

    def __post_init__(self) -> None:
        if self.group_size is not None and self.group_size < CLIENTS_MIN:
            raise ConfigError(f"group_size must be >= {CLIENTS_MIN}, got {self.group_size}")
        if not 0 < self.metrics_max <= METRICS_BOUND:
            raise ConfigError(f"metrics_max must be in (0, 1e9], got {self.metrics_max!r}")
        if len(self.metrics) > METRICS_COUNT_MAX or len(set(self.metrics)) != len(self.metrics):
            raise ConfigError(f"metrics must be at most {METRICS_COUNT_MAX} different names")
        if any(not name or not name.isprintable() for name in self.metrics):
            raise ConfigError(f"metrics must have plain names, got {self.metrics!r:.200}")

    def plan(self, *, clients: int, length: int) -> Plan:
        """Return the plan of one session.

        Raises:
            ConfigError: these numbers are not safe for so many clients, or a group has fewer.
        """
        if self.group_size is not None and clients < self.group_size:
            raise ConfigError(
                f"a group must have at least {self.group_size} clients (group_size), got {clients}"
            )
        room = (1 << max(0, self.bits - self.value_bits)) - 1
        weight_max = self.weight_max or max(1, min(1 << 24, room // max(1, clients)))
        return plan_secure_sum(
            clients=clients,
            length=length,
            corrupt=self.corrupt,
            dropout=self.dropout,
            bits=self.bits,
            value_bits=self.value_bits,
            weight_max=weight_max,
            clip=self.clip,
            grinding_bits=GRINDING_BITS,
        )
