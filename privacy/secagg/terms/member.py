"""A client's introduction to a secure sum: its record on the wire, and the server's checks."""

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
    """A client's introduction.

    Attributes:
        key: its long-term public key.
        advertised: its keys for one session (`ClientKeys.advertise`).
        setup: the hash of its configuration outside the message (`setup_of`).
        certificate: proves that the key belongs to the client; empty under plain Flower.
    """

    key: bytes
    advertised: bytes
    setup: bytes
    certificate: bytes = b""

    def record(self) -> ConfigRecord:
        """Return the introduction as a ConfigRecord."""
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
        """Return the introduction in a message's content; None if it is missing or malformed."""
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
            SecureAggregationError: the client has not signed them, one of them is in `used`, or a
                key agreement with one of them gives no secret.
        """
        keys, name = Advertisement.from_bytes(self.advertised), name_of(node)
        keys.require_signed(self.key, name=name)
        keys.require_agreeable(name=name)
        found = {self.key, keys.sealing, keys.masking}
        if len(found) < 3 or found & used:
            raise SecureAggregationError("it has a public key of another client, or one key twice")
        return found
