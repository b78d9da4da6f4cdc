"""What a server and its clients say to each other in a secure round: Flower messages.

    query.secure_identity   who are you?         a client's long-term key, and keys for one session
    train.secure            the instruction      shares of its secrets, sealed; it has trained
    evaluate.secure         likewise             likewise; it has evaluated
    query.secure_vector     shares for it        its vector under masks
    query.secure_confirm    who is in the sum    its signature of that
    query.secure_unmask     those signatures     one share of one secret of each client

All of them have a ConfigRecord "secure", and nothing else but the instruction itself and the
masked vector, which is an array. What is inside of "message" is `secagg`'s. Who a client is, is in
a ConfigRecord "introduction"; the last answer of a training has one too, for the evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....errors import ConfigError, SecureAggregationError
from ....strategies.algorithms.bounds import require_choice
from ...dp.mechanisms.clipping import Clipping
from ...dp.mechanisms.integer_sum import LAWS, Law
from ...dp.noise_terms import NoiseTerms
from ..protocol import Plan, plan_secure_sum
from ..protocol.noisy_encoding import NoisyEncoding
from ..protocol.topology import CLIENTS_MIN, choose_topology

__all__ = [
    "ANSWERS",
    "CLIENTS_MAX",
    "GRINDING_BITS",
    "IDENTITY",
    "MASKED",
    "METRICS_COUNT_MAX",
    "METRIC_CHARS_MAX",
    "RECORD",
    "SECURE_SUM_FAILED",
    "SUFFIX",
    "SecureTerms",
    "is_answer",
    "is_secure",
    "is_talk",
]

RECORD = "secure"
MASKED = "masked"
"""The array of a masked vector's bytes, and the record that it is in."""
SECURE_SUM_FAILED = 1002
"""Code of the error reply of a client that is not in the sum, or of everybody without a sum."""

GRINDING_BITS = 64
"""A ring is as safe as if nobody chose it from someone who tries 2^64 of them: the server can try
as many as it computes between the last introduction that it hears and its announcement."""

METRICS_COUNT_MAX = 64
METRIC_CHARS_MAX = 128
CLIENTS_MAX = 10_000
"""The largest cohort: everybody is told everybody's keys."""
WHOLE_BOUNDS = {
    "bits": (8, 32),
    "value_bits": (2, 24),
    "weight_max": (1, 1 << 24),
    "group_size": (CLIENTS_MIN, CLIENTS_MAX),
}
NUMBER_BOUNDS = {
    "corrupt": (0.0, 1.0),
    "dropout": (0.0, 1.0),
    "clip": (1e-12, 1e12),
    "metrics_max": (1e-9, 1e9),
    "clip_norm": (1e-12, 1e12),
    "noise_multiplier": (1e-9, 1e9),
}
"""What the numbers of a run's terms may be, the ends included: all that is used, and within it no sum
or plan overflows."""
ABSENT = ("weight_max", "group_size", "clip_norm", "noise_multiplier")
"""Which of them may be None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureTerms:
    """The public numbers of a run's secure sums; see `plan_secure_sum` for most of them.

    Attributes:
        weight_max: a client with more examples counts as this many; None is the most that leaves
            room for the cohort.
        metrics: which metrics are summed up beside the params.
        metrics_max: a metric, and the change of an integer in the params, is clipped to this.
        group_size: the fewest clients of a group; None is one sum of the whole cohort.
        clip_norm: with `noise_multiplier`: the L2 norm that the whole vector is clipped to.
        noise_multiplier: of the noise in a sum, standard deviation / clip_norm; the clients add
            it, each its share. None: sums carry no noise. Noisy sums have no metrics.
        noise_law: how that noise is distributed.
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
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    noise_law: Law = "skellam"

    def __post_init__(self) -> None:
        self._check_numbers()
        if type(self.metrics) is not tuple or any(type(name) is not str for name in self.metrics):
            raise ConfigError(f"metrics must be a tuple of names, got {self.metrics!r:.200}")
        if len(self.metrics) > METRICS_COUNT_MAX or len(set(self.metrics)) != len(self.metrics):
            raise ConfigError(f"metrics must be at most {METRICS_COUNT_MAX} different names")
        if any(not 0 < len(n) <= METRIC_CHARS_MAX or not n.isprintable() for n in self.metrics):
            raise ConfigError(f"metrics must have short plain names, got {self.metrics!r:.200}")
        if (self.clip_norm is None) != (self.noise_multiplier is None):
            raise ConfigError("a noisy sum needs clip_norm and noise_multiplier, and no other has")
        require_choice("noise_law", self.noise_law, LAWS)
        if self.noise_multiplier is not None and self.metrics:
            raise ConfigError(f"metrics carry no noise: none may be summed, got {self.metrics}")

    def _check_numbers(self) -> None:
        for name, (least, most) in (*WHOLE_BOUNDS.items(), *NUMBER_BOUNDS.items()):
            value = getattr(self, name)
            if value is None and name in ABSENT:
                continue
            whole = type(value) is int
            if not whole and (name in WHOLE_BOUNDS or type(value) is not float):
                kind = "whole number" if name in WHOLE_BOUNDS else "number"
                raise ConfigError(f"{name} must be a {kind}, got {value!r:.80}")
            if not least <= value <= most:
                raise ConfigError(f"{name} must be in [{least:g}, {most:g}], got {value!r:.80}")

    def require_noise_terms(self, record: Mapping[str, Any]) -> None:
        """Check that sums have the noise and the clip that an instruction announces.

        Raises:
            ProtocolError: what is announced cannot be.
            SecureAggregationError: they have others: a ledger would be wrong.
        """
        noise, clipping = NoiseTerms.of(record), Clipping.of(record)
        said: tuple[object, ...] = (None, None, None)
        if noise is not None and clipping is not None and noise.is_distributed:
            said = noise.multiplier, clipping.norm, noise.law
        law = None if self.noise_multiplier is None else self.noise_law
        ours = self.noise_multiplier, self.clip_norm, law
        if said != ours:
            raise SecureAggregationError(
                f"the instruction announces sums with noise multiplier, clip and law {said}, the "
                f"terms of the sum say {ours}"
            )

    def plan(self, *, clients: int, length: int, seed: bytes = b"") -> Plan:
        """Return the plan of one session; `seed` decides how noisy sums are rotated.

        The noise of the fewest clients whose sum may become known is enough, less those that may
        collude with the server: they know their own.

        Raises:
            ConfigError: these numbers are not safe for so many clients, or a group has fewer.
        """
        if self.group_size is not None and clients < self.group_size:
            raise ConfigError(
                f"a group must have at least {self.group_size} clients (group_size), got {clients}"
            )
        if self.noise_multiplier is not None and self.clip_norm is not None:
            topology = choose_topology(
                clients=clients,
                corrupt=self.corrupt,
                dropout=self.dropout,
                grinding_bits=GRINDING_BITS,
            )
            encoding = NoisyEncoding(
                length=length,
                bits=self.bits,
                clip_norm=self.clip_norm,
                noise_multiplier=self.noise_multiplier,
                clients=clients,
                noisy=topology.survivors_min - topology.corrupt,
                seed=seed,
                law=self.noise_law,
            )
            return Plan(topology=topology, encoding=encoding)
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


SUFFIX = ".secure"
"""An instruction is of the type "train" or "evaluate" and this."""
IDENTITY = "query.secure_identity"
ANSWERS = (
    "query.secure_vector",
    "query.secure_confirm",
    "query.secure_unmask",
)


def is_answer(message_type: str) -> bool:
    """Return whether a message goes on with a session that has begun."""
    return message_type in ANSWERS


def is_talk(message_type: str) -> bool:
    """Return whether a message is about a session, and asks nothing of the data."""
    return message_type == IDENTITY or is_answer(message_type)


def is_secure(message_type: str) -> bool:
    """Return whether a message belongs to a secure round."""
    instructions = (f"train{SUFFIX}", f"evaluate{SUFFIX}")
    return message_type in (IDENTITY, *ANSWERS, *instructions)
