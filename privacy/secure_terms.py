"""What a server and its clients say to each other in a secure round: Flower messages.

    query.secure_identity   who are you?         a client's long-term Ed25519 public key
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

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from hashlib import sha256
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from ..errors import ConfigError, SecureAggregationError
from ..flower import tensors_of
from .secagg import Binding, Plan, Roster, plan_secure_sum
from .secagg.keys import KEY_BYTES

__all__ = [
    "MASKED",
    "RECORD",
    "SECURE_SUM_FAILED",
    "Announcement",
    "SecureTerms",
    "bind",
    "name_of",
]

RECORD = "secure"
MASKED = "masked"
"""The array of a masked vector's bytes, and the record that it is in."""
SECURE_SUM_FAILED = 1002
"""Code of the error reply of a client that is not in the sum, or of everybody without a sum."""

NODE_BYTES = 8
METRICS_BOUND = 1e9
METRICS_COUNT_MAX = 64
BLOCK = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureTerms:
    """The public numbers of a run's secure sums; see `plan_secure_sum` for most of them.

    Attributes:
        weight_max: a client with more examples counts as this many; None is the most that leaves
            room for the cohort.
        metrics: which metrics are summed up beside the params.
        metrics_max: a metric, and the change of an integer in the params, is clipped to this.
    """

    corrupt: float = 0.33
    dropout: float = 0.3
    bits: int = 32
    value_bits: int = 16
    clip: float = 1.0
    weight_max: int | None = None
    metrics: tuple[str, ...] = ("loss",)
    metrics_max: float = 100.0

    def __post_init__(self) -> None:
        if not 0 < self.metrics_max <= METRICS_BOUND:
            raise ConfigError(f"metrics_max must be in (0, 1e9], got {self.metrics_max!r}")
        if len(self.metrics) > METRICS_COUNT_MAX or len(set(self.metrics)) != len(self.metrics):
            raise ConfigError(f"metrics must be at most {METRICS_COUNT_MAX} different names")
        if any(not name or not name.isprintable() for name in self.metrics):
            raise ConfigError(f"metrics must have plain names, got {self.metrics!r:.200}")

    def plan(self, *, clients: int, length: int) -> Plan:
        """Return the plan of one session; everybody is masked against everybody.

        Raises:
            ConfigError: these numbers are not safe for so many clients.
        """
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
            complete_max=clients,  # the ring needs a beacon that nobody chose
        )


_TERMS = {entry.name: entry.name.replace("_", "-") for entry in fields(SecureTerms)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What the server says of a session when it begins."""

    session: bytes
    round: int
    keys: Mapping[int, bytes]
    """The long-term public key of every client of the cohort, by node id."""
    terms: SecureTerms

    @property
    def roster(self) -> Roster:
        """The cohort as `secagg` knows it."""
        return Roster.of({name_of(node): key for node, key in self.keys.items()})

    def record(self) -> ConfigRecord:
        """Return the record that says all of it."""
        said: dict[str, Any] = {
            wire: value
            for wire, value in zip(_TERMS.values(), astuple(self.terms), strict=True)
            if value is not None
        }
        said["metrics"] = "\n".join(self.terms.metrics)
        nodes = sorted(self.keys)
        said["nodes"] = b"".join(node.to_bytes(NODE_BYTES, "big") for node in nodes)
        said["keys"] = b"".join(self.keys[node] for node in nodes)
        return ConfigRecord({**said, "session": self.session, "round": self.round})

    @classmethod
    def read(cls, record: ConfigRecord) -> Announcement:
        """Return what a record says.

        Raises:
            SecureAggregationError: it is malformed, or lists a client twice.
        """
        try:
            said: Any = dict(record)
            raw, keys = said["nodes"], said["keys"]
            nodes = [
                int.from_bytes(raw[at : at + NODE_BYTES], "big")
                for at in range(0, len(raw), NODE_BYTES)
            ]
            cut = [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
            by_node = dict(zip(nodes, cut, strict=True))
            if len(by_node) != len(nodes) or list(by_node) != sorted(by_node):
                raise ValueError("its nodes are not sorted and different")
            terms = {name: said[wire] for name, wire in _TERMS.items() if wire in said}
            terms["metrics"] = tuple(filter(None, said["metrics"].split("\n")))
            session, number = said["session"], said["round"]
            if type(session) is not bytes or type(number) is not int:
                raise ValueError("its session or round is of another type")
            return cls(session=session, round=number, keys=by_node, terms=SecureTerms(**terms))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SecureAggregationError(f"an announcement cannot be read: {error}") from None


def name_of(node: int) -> str:
    """Return what a client is called in a roster."""
    return str(node)


def bind(announcement: Announcement, *, run_id: int, category: str, content: RecordDict) -> Binding:
    """Return what a session is bound to, from what this side itself has seen.

    `content` is the instruction's: its params are the binding's model, and the rest of it, the
    run and the terms are the configuration.
    """
    digest = sha256(b"meadow secure round 1\0")
    for part in (run_id, category, astuple(announcement.terms)):
        _add(digest, repr(part).encode())
    for name in sorted(content.keys()):
        record = content[name]
        if name != RECORD and not isinstance(record, ArrayRecord):
            _add(digest, repr((name, sorted(record.items()))).encode())
    return Binding(
        session=announcement.session,
        round=announcement.round,
        model=_digest_of_arrays(content),
        configuration=digest.digest(),
    )


def _digest_of_arrays(content: RecordDict) -> bytes:
    digest = sha256()
    for record_name in sorted(content.array_records):
        tensors = tensors_of(content.array_records[record_name])
        for name in sorted(tensors):
            tensor, size = tensors[name], 1
            for length in tensor.shape:
                size *= length
            about = (record_name, name, tensor.dtype.name, tuple(map(int, tensor.shape)))
            _add(digest, repr(about).encode())
            for start in range(0, size, BLOCK):
                digest.update(tensor[start : start + BLOCK].tobytes())
    return digest.digest()


def _add(digest: Any, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "big") + part)
