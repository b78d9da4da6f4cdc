"""The steps of a session, what is signed and derived in them, and the keys that two sides share."""

from __future__ import annotations

from enum import IntEnum

from .keys import derive_key

__all__ = ["ProtocolStep", "Purpose", "mask_key", "sealing_key"]


class ProtocolStep(IntEnum):
    """What a client does, in order."""

    SHARE = 0
    MASK = 1
    CONFIRM = 2
    UNMASK = 3


class Purpose:
    """The names under which keys are derived and bytes are signed."""

    KEYS = b"keys"
    MASKED = b"masked vector"
    SURVIVORS = b"survivors"
    SHARES = b"shares"
    SELF_MASK = b"self mask"
    PAIR_MASK = b"pair mask"


def mask_key(agreed: bytes, context: bytes, one: int, other: int) -> bytes:
    """Return the key of the mask that two clients share, the same for both."""
    return derive_key(agreed, context, Purpose.PAIR_MASK, min(one, other), max(one, other))


def sealing_key(agreed: bytes, context: bytes, sender: int, receiver: int) -> bytes:
    """Return the key under which one client's shares for another are sealed, once."""
    return derive_key(agreed, context, Purpose.SHARES, sender, receiver)
