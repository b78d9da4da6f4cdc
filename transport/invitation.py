"""An invitation: what a client needs to enrol, as one line to send or to paste. It is a secret, for one use.

    meadow-invitation-1:CONTENT:CHECK

CONTENT is JSON in URL-safe base64 without padding; CHECK is the beginning of its SHA-256 in hexadecimal, by
which a line that was cut or mistyped is noticed. White space does not matter.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass, field
from typing import Final, Self

from ..errors import ConfigError, MeadowError
from .address import Address
from .identity import check_client_name
from .tokens import hash_token

__all__ = ["TEXT_CHARS_MAX", "Invitation"]

FORM: Final = "meadow-invitation-1"
CHECK_CHARS: Final = 16
TEXT_CHARS_MAX: Final = 4096
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_KEYS: Final = {
    "client": str, "server": str, "ca_fingerprint": str, "token": str, "expires_at_s": float,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """A client's name, where it enrols, the authority's fingerprint, and a one-time token."""

    client: str
    server: str
    """HOST:PORT of the enrolment listener."""
    ca_fingerprint: str
    token: str = field(repr=False)
    expires_at_s: float
    """Since 1970; the server decides by its own clock."""

    def to_line(self) -> str:
        """Return the invitation as a line, without its end."""
        fields = {**asdict(self), "expires_at_s": float(self.expires_at_s)}
        data = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
        content = base64.urlsafe_b64encode(data).decode().rstrip("=")
        return f"{FORM}:{content}:{_check(content)}"

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the invitation in a file or a pasted line.

        Raises:
            ConfigError: it is none, or not as it was written. The text is not repeated in the message.
        """
        if len(text) > TEXT_CHARS_MAX:
            raise ConfigError(f"an invitation has at most {TEXT_CHARS_MAX} characters")
        form, _, rest = re.sub(r"\s+", "", text).partition(":")
        content, _, check = rest.partition(":")
        if form != FORM:
            raise ConfigError(
                f"this is no invitation of a form that this version knows; it would begin with {FORM}:"
            )
        if check != _check(content):
            raise ConfigError(
                "the invitation is incomplete or was changed on its way; copy all of it, or ask the "
                "server's operator for a new one"
            )
        try:
            fields = json.loads(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
            if not isinstance(fields, dict) or {
                key: type(value) for key, value in fields.items()
            } != dict(_KEYS):
                raise ValueError("other fields")
            invitation = cls(**fields)
            Address.parse(invitation.server, what="the server's address")
            check_client_name(invitation.client)
            hash_token(invitation.token)
            if not _FINGERPRINT.fullmatch(invitation.ca_fingerprint):
                raise ValueError("no fingerprint")
            if not math.isfinite(invitation.expires_at_s):
                raise ValueError("no time")
        except (ValueError, RecursionError, MeadowError) as error:
            raise ConfigError(
                "the invitation has a content that no server writes; ask the operator for a new one"
            ) from error
        return invitation


def _check(content: str) -> str:
    return hashlib.sha256(content.encode(errors="replace")).hexdigest()[:CHECK_CHARS]
