"""The Flower messages between a server and its clients in a secure round.

    message type            from the server      the client's answer
    query.secure_identity   (empty)              its long-term key, and keys for one session
    train.secure            the instruction      sealed shares of its secrets, after training
    evaluate.secure         the instruction      sealed shares of its secrets, after evaluation
    query.secure_vector     shares for it        its masked vector
    query.secure_confirm    who is in the sum    its signature over that set
    query.secure_unmask     those signatures     one share of one secret of each client

All of them have a ConfigRecord "secure", whose "message" is a message of `privacy.secagg.protocol`.
In addition there are only the instruction itself and the masked vector, which is an array. A
client introduces itself in a ConfigRecord "introduction"; the last answer of a training has one
too, for the evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from typing import Any

from ....deprecated import warn_renamed
from ....errors import ConfigError, SecureAggregationError
from ....strategies.algorithms.bounds import require_choice
from ...dp.mechanisms.clipping import Clipping
from ...dp.mechanisms.integer_sum import LAWS, Law
from ...dp.noise_terms import NoiseTerms
from ..protocol import Plan, plan_secure_sum
from ..protocol.noisy_encoding import NoisyEncoding
from ..protocol.steps import ProtocolStep
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
"""The name of the array of a masked vector's bytes, and of its record."""
SECURE_SUM_FAILED = 1002
"""Code of the error reply of a client that is not in the sum, or whose sum failed."""

GRINDING_BITS = 64
"""The ring is chosen to be safe against a server that tries 2^64 rings and takes the best. A server
can try rings only between the last introduction that it receives and its announcement."""

METRICS_COUNT_MAX = 2048
METRIC_CHARS_MAX = 128
CLIENTS_MAX = 10_000
"""The largest cohort: every client gets the keys of all others."""
WHOLE_BOUNDS = {
    "bits": (8, 32),
    "value_bits": (2, 24),
    "weight_max": (1, 1 << 24),
    "group_size": (CLIENTS_MIN, CLIENTS_MAX),
}
NUMBER_BOUNDS = {
    "corrupt": (0.0, 1.0),
    "dropout": (0.0, 1.0),
    "value_bound": (1e-12, 1e12),
    "metrics_max": (1e-9, 1e9),
    "clip_norm": (1e-12, 1e12),
    "noise_multiplier": (1e-9, 1e9),
}
"""The bounds of the numbers of a run's terms, inclusive; within them no sum or plan overflows."""
ABSENT = ("weight_max", "group_size", "clip_norm", "noise_multiplier")
"""The terms that may be None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureTerms:
    """The public numbers of a run's secure sums; see `plan_secure_sum` for most of them.

    Attributes:
        weight_max: the most examples that a client's update is weighted by; None is the largest
            number for which no sum of the cohort overflows.
        metrics: the names of the metrics that are summed with the params.
        metrics_max: metrics, and deltas of integer params, are clipped to this magnitude.
        group_size: the fewest clients of a group; None is one sum of the whole cohort.
        clip_norm: the L2 norm that the whole vector is clipped to, in a noisy sum.
        noise_multiplier: standard deviation of the noise in a sum / clip_norm; each client adds
            a share of the noise. None: sums have no noise. Noisy sums have no metrics.
        noise_law: the distribution of that noise.
    """

    corrupt: float = 0.33
    dropout: float = 0.3
    bits: int = 32
    value_bits: int = 16
    value_bound: float = 1.0
    weight_max: int | None = None
    metrics: tuple[str, ...] = ("loss",)
    metrics_max: float = 100.0
    group_size: int | None = None
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    noise_law: Law = "skellam"
    clip: InitVar[float | None] = None
    """The old name of `value_bound`, until 0.3."""

    def __post_init__(self, clip: float | None) -> None:
        if clip is not None:
            warn_renamed("SecureTerms", "clip", "value_bound")
            object.__setattr__(self, "value_bound", clip)
        self._check_numbers()
        if type(self.metrics) is not tuple or any(type(name) is not str for name in self.metrics):
            raise ConfigError(f"metrics must be a tuple of names, got {self.metrics!r:.200}")
        if len(self.metrics) > METRICS_COUNT_MAX or len(set(self.metrics)) != len(self.metrics):
            raise ConfigError(f"metrics must be at most {METRICS_COUNT_MAX} different names")
        if any(not 0 < len(n) <= METRIC_CHARS_MAX or not n.isprintable() for n in self.metrics):
            raise ConfigError(f"metrics must have short plain names, got {self.metrics!r:.200}")
        if (self.clip_norm is None) != (self.noise_multiplier is None):
            raise ConfigError("set both clip_norm and noise_multiplier, or neither")
        require_choice("noise_law", self.noise_law, LAWS)
        if self.noise_multiplier is not None and self.metrics:
            raise ConfigError(f"a noisy sum must have no metrics, got {self.metrics}")

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
        """Check that sums have the noise and the clip norm that an instruction announces.

        Raises:
            ProtocolError: the instruction announces impossible values.
            SecureAggregationError: the terms have other values: a ledger would be wrong.
        """
        noise, clipping = NoiseTerms.of(record), Clipping.of(record)
        announced: tuple[object, ...] = (None, None, None)
        if noise is not None and clipping is not None and noise.is_distributed:
            announced = noise.noise_multiplier, clipping.clip_norm, noise.law
        law = None if self.noise_multiplier is None else self.noise_law
        ours = self.noise_multiplier, self.clip_norm, law
        if announced != ours:
            raise SecureAggregationError(
                "the instruction announces sums with noise multiplier, clip norm and law "
                f"{announced}, the terms of the sum have {ours}"
            )

    def plan(self, *, clients: int, length: int, seed: bytes = b"") -> Plan:
        """Return the plan of one session; `seed` determines the rotation of noisy sums.

        The noise suffices for the smallest sum that may be revealed, without the shares of clients
        that may collude with the server, as those know their own noise.

        Raises:
            ConfigError: the terms are not safe for `clients`, or `clients` is below `group_size`.
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
            value_bound=self.value_bound,
            grinding_bits=GRINDING_BITS,
        )


SUFFIX = ".secure"
"""The suffix of an instruction's message type, after "train" or "evaluate"."""
IDENTITY = "query.secure_identity"
ANSWERS = {
    "query.secure_vector": ProtocolStep.MASK,
    "query.secure_confirm": ProtocolStep.CONFIRM,
    "query.secure_unmask": ProtocolStep.UNMASK,
}
"""Message type -> the step that a client takes with it, in order."""


def is_answer(message_type: str) -> bool:
    """Return whether a message continues a session that has begun."""
    return message_type in ANSWERS


def is_talk(message_type: str) -> bool:
    """Return whether a message belongs to a session's protocol and uses no data."""
    return message_type == IDENTITY or is_answer(message_type)


def is_secure(message_type: str) -> bool:
    """Return whether a message belongs to a secure round."""
    instructions = (f"train{SUFFIX}", f"evaluate{SUFFIX}")
    return message_type in (IDENTITY, *ANSWERS, *instructions)
