"""The bounds of every field of a peer's message: one table, checked before a message is used.

Every field of every message that an agent and a server send each other is in `RULES`, but for the
records of an envelope, whose content `codec` checks while it takes them apart. A message has the
types that protobuf gives its fields; this module checks lengths, ranges and counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from ..errors import LimitError, ProtocolError

__all__ = [
    "ERROR_CHARS_MAX",
    "ID_CHARS_MAX",
    "METADATA_CHARS_MAX",
    "RULES",
    "RUN_CONFIG_MAX",
    "SITES_MAX",
    "Elsewhere",
    "Length",
    "Nested",
    "Range",
    "check_fields",
]

ID_CHARS_MAX: Final = 200
"""Of an instruction's id."""
NAME_CHARS_MAX: Final = 200
METADATA_CHARS_MAX: Final = 1024
ERROR_CHARS_MAX: Final = 16_384
RUN_CONFIG_MAX: Final = 1024
"""So many values may a run config have."""
SITES_MAX: Final = 10_000_000
APP_SIGNATURE_BYTES_MAX: Final = 4096
SECONDS_MAX: Final = 1e12
U32: Final = (1 << 32) - 1
U64: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Length:
    """Bounds of the length of a text in characters, of bytes, or of a list."""

    most: int
    least: int = 0

    def fault(self, value: str | bytes) -> str | None:
        if self.least <= len(value) <= self.most:
            return None
        return f"has the length {len(value)}, not {self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number; NaN is outside of every range."""

    least: float
    most: float

    def fault(self, value: float) -> str | None:
        if self.least <= value <= self.most:
            return None
        return f"is {value!r}, not within [{self.least:g}, {self.most:g}]"


class Nested:
    """A message with rules of its own."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A field that the module `by` checks when it uses it."""

    by: str


Rule = Length | Range | Nested | Elsewhere
ID = Length(ID_CHARS_MAX, least=1)
ECHOED = Length(64)
"""An instruction's id as an agent repeats it: as long as the server's may be, and empty if it has none."""
WORD = Length(NAME_CHARS_MAX)
NODE = Range(0, U64)
ANY_TIME = Range(-SECONDS_MAX, SECONDS_MAX)

RULES: Final[Mapping[str, Mapping[str, Rule]]] = {
    "ServerMessage": dict.fromkeys(("welcome", "instruction", "ack", "cancel"), Nested()),
    "AgentMessage": dict.fromkeys(("hello", "progress", "reply", "leaves"), Nested()),
    "Welcome": {
        "node_id": NODE,
        "lease_s": Elsewhere("client.agent, which takes what is nearest to it"),
        "server_time_s": ANY_TIME,
        "chunk_bytes": Elsewhere("client.transfer, which takes what is nearest to it"),
    },
    "Instruction": {
        "id": ID,
        "run_id": NODE,
        "app": Nested(),
        "envelope": Nested(),
        "cohort_clients": Range(0, U32),
        "sites": Range(0, SITES_MAX),
        "site_nodes": Length(SITES_MAX // 8),
        "joined_nodes": Length(SITES_MAX),
        "run_config": Length(RUN_CONFIG_MAX),
        "secure_aggregation": Range(0, 1),
        "differential_privacy": Range(0, 1),
    },
    "App": {
        "name": WORD,
        "sha256": WORD,
        "archive": Elsewhere("client.offers, which fetches it where an owner is to look at it"),
        "signature": Length(APP_SIGNATURE_BYTES_MAX),
    },
    "ReplyAck": {"instruction_id": ID},
    "Cancel": {"instruction_id": ID, "reason": Length(ERROR_CHARS_MAX)},
    "Hello": {
        "protocol": Range(0, U32),
        "client": WORD,
        "version": WORD,
        "relay": Range(0, 1),
    },
    "Leaves": {"node_ids": Elsewhere("server.daemon.agent_registry, which bounds their number")},
    "Progress": {"instruction_id": ECHOED},
    "Reply": {
        "instruction_id": ECHOED,
        "envelope": Elsewhere("server.steps, for which a bad one is the client's failed answer"),
        "refused": Elsewhere("server.steps, which keeps its beginning"),
        "file": Elsewhere("server.spool, which reads no more than a reply may have"),
    },
    "Envelope": {
        "metadata": Nested(),
        "records": Elsewhere("transport.codec"),
        "error": Nested(),
    },
    "Metadata": {
        "run_id": NODE,
        "message_id": Length(METADATA_CHARS_MAX),
        "src_node_id": NODE,
        "dst_node_id": NODE,
        "reply_to_message_id": Length(METADATA_CHARS_MAX),
        "group_id": Length(METADATA_CHARS_MAX),
        "created_at_s": ANY_TIME,
        "ttl_s": ANY_TIME,
        "message_type": Length(METADATA_CHARS_MAX),
    },
    "AppError": {
        "code": Range(-math.inf, math.inf),
        "reason": Length(ERROR_CHARS_MAX),
    },
}


def check_fields(message: Message) -> None:
    """Check every field that is set, and every required field, also in nested messages.

    Raises:
        LimitError: a text or a list is too long.
        ProtocolError: a text is missing, or a number is beyond what it may be.
    """
    name = message.DESCRIPTOR.name
    for field, rule in RULES[name].items():
        if isinstance(rule, Nested):
            if message.HasField(field):
                check_fields(getattr(message, field))
        elif not isinstance(rule, Elsewhere) and (fault := rule.fault(getattr(message, field))):
            text = f"{name}.{field} of a message {fault}"
            raise LimitError(text) if isinstance(rule, Length) else ProtocolError(text)
