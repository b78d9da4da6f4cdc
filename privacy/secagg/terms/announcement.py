"""The server's announcement of a secure sum, and the binding that both sides derive from it.

The beacon, which determines the ring of a large cohort, is a hash of all clients' advertisements.
A client takes part only with its own fresh keys, so nobody knows the ring before it has sent them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from hashlib import sha256
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from ....errors import ConfigError, SecureAggregationError
from ....flower.messages import tensors_of
from ..protocol import ADVERTISEMENT_BYTES, Binding, Plan, Roster
from ..protocol.binding import SESSION_BYTES
from ..protocol.keys import KEY_BYTES
from .terms import CLIENTS_MAX, METRIC_CHARS_MAX, METRICS_COUNT_MAX, RECORD, SecureTerms

__all__ = [
    "CERTIFICATE_BYTES_MAX",
    "NODE_BYTES",
    "SETUP_BYTES",
    "Announcement",
    "bind",
    "name_of",
    "setup_of",
]

NODE_BYTES = 8
SETUP_BYTES = 32
CERTIFICATE_BYTES_MAX = 4096
BLOCK = 65_536
_FIELDS: Mapping[str, tuple[Any, int, int]] = {
    "session": (bytes, *SESSION_BYTES),
    "round": (int, 0, (1 << 63) - 1),
    "setup": (bytes, SETUP_BYTES, SETUP_BYTES),
    "nodes": (bytes, 0, NODE_BYTES * CLIENTS_MAX),
    "keys": (bytes, 0, KEY_BYTES * CLIENTS_MAX),
    "advertised": (bytes, 0, ADVERTISEMENT_BYTES * CLIENTS_MAX),
    "certificates": (list, 0, CLIENTS_MAX),
    "metrics": (str, 0, METRICS_COUNT_MAX * (METRIC_CHARS_MAX + 1)),
}
"""The fields of an announcement, without the numbers of its terms: the type of each, and the minimum
and maximum of its value or length."""
_TERMS = {entry.name: entry.name.replace("_", "-") for entry in fields(SecureTerms)} | {
    "value_bound": "clip"
}
"""The fields of a run's terms as an announcement names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """The server's announcement of a session."""

    session: bytes
    round: int
    keys: Mapping[int, bytes]
    """The long-term public key of every client of the cohort, by node id."""
    advertised: Mapping[int, bytes]
    """The signed keys that each client has drawn for this session only, by node id."""
    terms: SecureTerms
    setup: bytes
    """The hash of the clients' configuration outside their messages; see `setup_of`."""
    certificates: Mapping[int, bytes] = field(default_factory=dict)
    """Node id -> the certificate that binds the client's key to its enrolment, if it has one."""

    @property
    def roster(self) -> Roster:
        """The roster of the cohort."""
        return Roster.of(
            {name_of(node): (key, self.advertised[node]) for node, key in self.keys.items()}
        )

    def plan(self, length: int) -> Plan:
        """Return the plan of a session of vectors of this length.

        Raises:
            ConfigError: the terms are not safe for so many clients.
        """
        return self.terms.plan(clients=len(self.keys), length=length, seed=self.session)

    def record(self) -> ConfigRecord:
        """Return the announcement as a ConfigRecord."""
        entries: dict[str, Any] = {
            wire: value
            for wire, value in zip(_TERMS.values(), astuple(self.terms), strict=True)
            if value is not None
        }
        entries["metrics"] = "\n".join(self.terms.metrics)
        nodes = sorted(self.keys)
        entries["nodes"] = b"".join(node.to_bytes(NODE_BYTES, "big") for node in nodes)
        entries["keys"] = b"".join(self.keys[node] for node in nodes)
        entries["advertised"] = b"".join(self.advertised[node] for node in nodes)
        if any(self.certificates.values()):
            entries["certificates"] = [self.certificates.get(node, b"") for node in nodes]
        entries |= {"session": self.session, "round": self.round, "setup": self.setup}
        return ConfigRecord(entries)

    @classmethod
    def read(cls, record: ConfigRecord) -> Announcement:
        """Parse a record.

        Raises:
            SecureAggregationError: a field is missing, of another type or out of its bounds, or a
                client is listed twice.
        """
        try:
            entries = {name: _checked(record, name) for name in _FIELDS if name in record}
            nodes = [int.from_bytes(each, "big") for each in _cut(entries["nodes"], NODE_BYTES)]
            if nodes != sorted(set(nodes)):
                raise ValueError("its nodes are not sorted and different")
            keys = _cut(entries["keys"], KEY_BYTES)
            advertised = _cut(entries["advertised"], ADVERTISEMENT_BYTES)
            certificates = entries.get("certificates", [b""] * len(nodes))
            terms: dict[str, Any] = {
                name: record[wire] for name, wire in _TERMS.items() if wire in record
            }
            terms["metrics"] = tuple(filter(None, entries["metrics"].split("\n")))
            return cls(
                session=entries["session"],
                round=entries["round"],
                setup=entries["setup"],
                keys=dict(zip(nodes, keys, strict=True)),
                advertised=dict(zip(nodes, advertised, strict=True)),
                terms=SecureTerms(**terms),
                certificates={
                    node: each for node, each in zip(nodes, certificates, strict=True) if each
                },
            )
        except KeyError as error:
            raise SecureAggregationError(f"an announcement lacks {error}") from None
        except (ConfigError, ValueError) as error:
            raise SecureAggregationError(f"an announcement cannot be read: {error}") from None


def _checked(record: ConfigRecord, name: str) -> Any:
    """Return a field of an announcement.

    Raises:
        ValueError: its type is another, or its value or length is out of bounds.
    """
    value: Any = record[name]
    kind, least, most = _FIELDS[name]
    if type(value) is not kind:
        raise ValueError(f"its {name} must be {kind.__name__}, is {type(value).__name__}")
    size = value if kind is int else len(value)
    if not least <= size <= most:
        raise ValueError(f"the value or length of its {name} must be {least} to {most}, is {size}")
    if kind is list and any(
        type(each) is not bytes or len(each) > CERTIFICATE_BYTES_MAX for each in value
    ):
        raise ValueError(f"its {name} must be bytes, each at most {CERTIFICATE_BYTES_MAX}")
    return value


def name_of(node: int) -> str:
    """Return a client's name in a roster."""
    return str(node)


def setup_of(run_config: Mapping[str, object]) -> bytes:
    """Return the hash, of `SETUP_BYTES`, of the configuration that a server gives its clients
    outside the message: under plain Flower, the run config."""
    text = repr(sorted(run_config.items())).encode()
    return sha256(b"meadow secure setup 1\0" + text).digest()


def bind(
    announcement: Announcement, *, run_id: int, category: str, group: str, content: RecordDict
) -> Binding:
    """Return the binding of a session, from messages that this side itself has sent or received.

    `content` is that of the instruction, in the message group `group`: its arrays are the
    binding's model, and everything else that a client's work depends on is the configuration.

    Guarantees: the binding covers every field of the announcement and of its terms, and every
        record of the content with its name, kind, values and their order.
    """
    digest = sha256(b"meadow secure round 2\0")
    for part in (run_id, category, group):
        _add(digest, repr(part).encode())
    for entry in fields(announcement):
        value = getattr(announcement, entry.name)
        if isinstance(value, Mapping):
            _add(digest, repr((entry.name, len(value))).encode())
            for node in sorted(value):
                _add(digest, node.to_bytes(NODE_BYTES, "big") + value[node])
        else:
            _add(digest, repr((entry.name, value)).encode())
    for name, record in content.items():
        if name != RECORD:
            entries = [] if isinstance(record, ArrayRecord) else list(record.items())
            _add(digest, repr((type(record).__name__, name, entries)).encode())
    return Binding(
        session=announcement.session,
        round=announcement.round,
        model=_digest_of_arrays(content),
        configuration=digest.digest(),
        beacon=_beacon(announcement, run_id),
    )


def _beacon(announcement: Announcement, run_id: int) -> bytes:
    digest = sha256(b"meadow secure beacon 2\0")
    _add(digest, repr((run_id, announcement.round)).encode() + announcement.session)
    for node in sorted(announcement.keys):
        member = node.to_bytes(NODE_BYTES, "big") + announcement.keys[node]
        _add(digest, member + announcement.advertised[node])
    return digest.digest()


def _cut(joined: bytes, size: int) -> list[bytes]:
    """Split into pieces of `size` bytes.

    Raises:
        ValueError: the last piece would be shorter.
    """
    if len(joined) % size:
        raise ValueError(f"{len(joined)} bytes are not pieces of {size}")
    return [joined[at : at + size] for at in range(0, len(joined), size)]


def _digest_of_arrays(content: RecordDict) -> bytes:
    digest = sha256()
    for record_name, record in content.array_records.items():
        for name, tensor in tensors_of(record).items():
            size = 1
            for length in tensor.shape:
                size *= length
            about = (record_name, name, tensor.dtype.name, tuple(map(int, tensor.shape)))
            _add(digest, repr(about).encode())
            for start in range(0, size, BLOCK):
                digest.update(tensor[start : start + BLOCK].tobytes())
    return digest.digest()


def _add(digest: Any, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "big") + part)
