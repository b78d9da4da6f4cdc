"""The bytes on the wire: a header, a set of clients, and records of fixed size.

    header   "MSA", version, kind, the first 16 bytes of the session's context
    set      one bit per client of the roster, the first client's bit lowest
    records  one for each client of the set that is relevant to the receiver, in roster order

Records have no ids and no lengths: the set determines whose they are, and the plan determines
every size. So a set has one encoding only, no client can be listed twice, and a peer cannot choose
a length. A message that is a byte too long or too short is refused.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from ....errors import SecureAggregationError
from .graph import Members
from .keys import SEAL_BYTES
from .shamir import SHARE_BYTES

__all__ = ["SEALED_BYTES", "SERVER", "Kind", "Reader", "members_bytes", "write"]

SERVER = "the server"

MAGIC = b"MSA"
VERSION = 2
CONTEXT_BYTES = 16
HEADER_BYTES = len(MAGIC) + 2 + CONTEXT_BYTES

SEALED_BYTES = 2 * SHARE_BYTES + SEAL_BYTES
"""The size of a sealed share of the self-mask's seed with one of the masking key, in bytes."""


class Kind(IntEnum):
    """The kind of a message: odd kinds go to the server, even kinds to the clients."""

    SHARES = 1
    DELIVERY = 2
    MASKED = 3
    SURVIVORS = 4
    CONFIRMATION = 5
    CONFIRMATIONS = 6
    UNMASKING = 7


def write(kind: Kind, context: bytes, *parts: bytes) -> bytes:
    """Return a message of this kind: the header, then `parts`."""
    header = MAGIC + bytes([VERSION, kind]) + context[:CONTEXT_BYTES]
    return b"".join((header, *parts))


def members_bytes(members: Members) -> bytes:
    """Return the encoding of a set."""
    return np.packbits(members, bitorder="little").tobytes()


class Reader:
    """Parses a message, from its beginning to its end.

    Raises:
        SecureAggregationError: the header, or the size of a part, is not the expected one.
    """

    def __init__(self, kind: Kind, context: bytes, message: bytes, *, sender: str) -> None:
        self._sender, self._name = sender, f"{kind.name.lower()} message from {sender}"
        self._rest = memoryview(message)
        header = bytes(self._take(HEADER_BYTES))
        if header[:4] != MAGIC + bytes([VERSION]):
            raise self._fault(f"is not of version {VERSION} of this protocol")
        if header[4] != kind:
            raise self._fault(f"is of kind {header[4]}; {int(kind)} is expected now")
        if header[5:] != context[:CONTEXT_BYTES]:
            raise self._fault("is of another session, round, model, configuration or plan")

    def members(self, clients: int) -> Members:
        """Read a set of clients."""
        raw = np.frombuffer(self._take(-(-clients // 8)), np.uint8)
        bits = np.unpackbits(raw, bitorder="little")
        if bits[clients:].any():
            raise self._fault(f"lists clients that are not among the {clients} of the roster")
        return bits[:clients].astype(np.bool_)

    def records(self, count: int, size_bytes: int) -> list[bytes]:
        """Read `count` records of `size_bytes` each."""
        raw = bytes(self._take(count * size_bytes))
        return [raw[start : start + size_bytes] for start in range(0, len(raw), size_bytes)]

    def body(self, size_bytes: int) -> memoryview:
        """Read bytes, without a copy."""
        return self._take(size_bytes)

    def end(self) -> None:
        """Check that nothing is left."""
        if self._rest:
            raise self._fault(f"has {len(self._rest)} bytes too many")

    def _take(self, size_bytes: int) -> memoryview:
        if len(self._rest) < size_bytes:
            raise self._fault(f"ends {size_bytes - len(self._rest)} bytes too early")
        taken, self._rest = self._rest[:size_bytes], self._rest[size_bytes:]
        return taken

    def _fault(self, what: str) -> SecureAggregationError:
        suspect = None if self._sender == SERVER else self._sender
        return SecureAggregationError(f"the {self._name} {what}", suspect=suspect)
