"""An author's signature of one version of an app: its name, its content and the time of signing.

The key is Ed25519. The signed statement has all three, so that a signature is valid for no other
app and no other content, and a client that stores the newest time can refuse older versions.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ..errors import AppError, IdentityError
from .durable import write_file

__all__ = ["SIGNATURE_FILE", "AppSignature", "make_author_key", "sign_app", "signature_beside"]

SIGNATURE_FILE: Final = ".meadow-signature"
"""The file is hidden, so it is not part of the content that it signs."""
FILE_BYTES_MAX: Final = 4096
PREFIX: Final = "ed25519:"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSignature:
    """The signature of a version, with its key and time."""

    key: bytes
    signed_at_s: int
    signature: bytes

    @property
    def signer(self) -> str:
        """The author's key, as written in an owner's client.toml."""
        return PREFIX + self.key.hex()

    def verify(self, name: str, sha256: str) -> None:
        """Check that the key has signed this version of this app.

        Raises:
            IdentityError: it has not.
        """
        try:
            statement = _statement(name, sha256, self.signed_at_s)
            Ed25519PublicKey.from_public_bytes(self.key).verify(self.signature, statement)
        except (InvalidSignature, UnsupportedAlgorithm, ValueError):
            raise IdentityError(
                f"the signature is not of app {name!r} with sha256:{sha256[:12]}..."
            ) from None

    def to_bytes(self) -> bytes:
        """Return the text of a signature's file."""
        fields = {
            "key": self.signer,
            "signed_at_s": self.signed_at_s,
            "signature": self.signature.hex(),
        }
        return (json.dumps(fields, indent=1) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> AppSignature:
        """Read a signature's file; `verify` says what it is worth.

        Raises:
            AppError: it is none.
        """
        try:
            if len(data) > FILE_BYTES_MAX:
                raise ValueError("it is too large")
            fields = json.loads(data)
            key, signature = str(fields["key"]), str(fields["signature"])
            at_s = fields["signed_at_s"]
            if not re.fullmatch(r"ed25519:[0-9a-f]{64}", key, re.ASCII):
                raise ValueError("its key is none")
            if not re.fullmatch(r"[0-9a-f]{128}", signature, re.ASCII):
                raise ValueError("its signature is none")
            if type(at_s) is not int or not 0 < at_s < 1 << 48:
                raise ValueError("it has no time")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise AppError(f"{SIGNATURE_FILE} cannot be read: {error}; sign the app anew") from None
        return cls(
            key=bytes.fromhex(key.removeprefix(PREFIX)),
            signed_at_s=at_s,
            signature=bytes.fromhex(signature),
        )


def signature_beside(folder: Path, *, name: str, sha256: str) -> bytes:
    """Return the signature in an app's folder, empty if there is none.

    Raises:
        AppError, IdentityError: it is malformed, or of another version of the app.
    """
    try:
        data = (folder / SIGNATURE_FILE).read_bytes()
    except FileNotFoundError:
        return b""
    try:
        AppSignature.from_bytes(data).verify(name, sha256)
    except IdentityError as error:
        raise IdentityError(
            f"{folder / SIGNATURE_FILE}: {error}; sign it anew with `meadow app sign`, or delete it"
        ) from None
    return data


def make_author_key(path: Path) -> str:
    """Write a new private key, readable only for its owner, and return the public key.

    Raises:
        IdentityError: the file exists already.
    """
    if path.exists():
        raise IdentityError(f"{path} exists; a key is not written over")
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_file(path, pem, mode=0o600)
    return PREFIX + key.public_key().public_bytes_raw().hex()


def sign_app(folder: Path, *, name: str, sha256: str, key_file: Path, now_s: int) -> AppSignature:
    """Sign a version of an app, and write the signature beside its files.

    Raises:
        IdentityError: the file has no author's key.
    """
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise TypeError("it is no Ed25519 key")
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityError(
            f"{key_file} is no author's key: {error}; `meadow app key {key_file}` makes one"
        ) from None
    made = AppSignature(
        key=key.public_key().public_bytes_raw(),
        signed_at_s=now_s,
        signature=key.sign(_statement(name, sha256, now_s)),
    )
    write_file(folder / SIGNATURE_FILE, made.to_bytes())
    return made


def _statement(name: str, sha256: str, signed_at_s: int) -> bytes:
    return f"meadow app signature 1\0{name}\0{sha256}\0{signed_at_s}".encode()
