"""One-time tokens for enrolment; the server stores only their hashes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets

from ..errors import IdentityError

__all__ = ["create_token", "hash_token", "match_token"]

_TOKEN = re.compile(r"[a-z2-7]{32}", re.ASCII)


def create_token() -> tuple[str, str]:
    """Return a new token for one client, and its hash for the server to store.

    Guarantees: 160 random bits, written as eight groups of four letters and digits that are
        hard to confuse. So many random bits need no slow hash.
    """
    letters = base64.b32encode(secrets.token_bytes(20)).decode().lower()
    text = "-".join(letters[start : start + 4] for start in range(0, len(letters), 4))
    return text, hash_token(text)


def hash_token(text: str) -> str:
    """Return a token's SHA-256 in hexadecimal; case, hyphens and spaces do not matter.

    Raises:
        IdentityError: it is malformed. The text is not repeated in the message.
    """
    letters = re.sub(r"[\s-]", "", text[:200]).lower()
    if not _TOKEN.fullmatch(letters):
        raise IdentityError("a token is eight groups of four of the letters a-z and digits 2-7")
    return hashlib.sha256(letters.encode()).hexdigest()


def match_token(text: str, sha256: str) -> None:
    """Check that a token has the stored hash, in constant time.

    Raises:
        IdentityError: it does not, or is malformed.
    """
    if not hmac.compare_digest(hash_token(text), sha256.lower()):
        raise IdentityError("the token is not the one that was given out")
