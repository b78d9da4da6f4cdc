"""A client of a secure sum, as it introduces itself: on the wire, and what the server checks."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from ....errors import SecureAggregationError
from ..protocol import ADVERTISEMENT_BYTES, Advertisement
from ..protocol.keys import KEY_BYTES
from .announcement import CERTIFICATE_BYTES_MAX, SETUP_BYTES, name_of

__all__ = ["INTRODUCTION", "Member"]

INTRODUCTION = "introduction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a client says of itself.

    Attributes:
        key: its long-term public key.
        advertised: its keys for one session (`ClientKeys.advertise`).
        setup: the hash of what the server has told it beside the message (`setup_of`).
        certificate: what others may believe the key for; nothing under plain Flower.
    """

    key: bytes
    advertised: bytes
    setup: bytes
    certificate: bytes = b""

    def record(self) -> ConfigRecord:
        """Return the record that says it."""
        return ConfigRecord(
            {
                "key": self.key,
                "advertised": self.advertised,
                "setup": self.setup,
                "certificate": self.certificate,
            }
        )

    @classmethod
    def read(cls, content: RecordDict) -> Member | None:
        """Return what a client says of itself; None if it says nothing, or is malformed."""
        record = content.config_records.get(INTRODUCTION, ConfigRecord())
        key, advertised, setup = (record.get(name) for name in ("key", "advertised", "setup"))
        if type(key) is not bytes or type(advertised) is not bytes or type(setup) is not bytes:
            return None
        certificate = record.get("certificate")
        certificate = certificate if type(certificate) is bytes else b""
        sizes = len(key), len(advertised), len(setup)
        if sizes != (KEY_BYTES, ADVERTISEMENT_BYTES, SETUP_BYTES):
            return None
        if len(certificate) > CERTIFICATE_BYTES_MAX:
            return None
        return cls(key=key, advertised=advertised, setup=setup, certificate=certificate)

    def public_keys(self, node: int, *, used: set[bytes]) -> set[bytes]:
        """Return all public keys of the client with this node id.

        Raises:
            SecureAggregationError: it has not signed them, somebody has `used` one of them
                already, or nothing secret can be agreed on with them.
        """
        keys, name = Advertisement.from_bytes(self.advertised), name_of(node)
        keys.require_signed(self.key, name=name)
        keys.require_agreeable(name=name)
        found = {self.key, keys.sealing, keys.masking}
        if len(found) < 3 or found & used:
            raise SecureAggregationError("it has a public key of another client, or one key twice")
        return found
