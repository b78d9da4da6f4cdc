"""The steps of a session, the purposes of its keys and signatures, and the keys of two clients."""

from __future__ import annotations

from enum import IntEnum

from .keys import derive_key

__all__ = ["ProtocolStep", "Purpose", "mask_key", "sealing_key"]


class ProtocolStep(IntEnum):
    """A client's steps, in order."""

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
    """Return the key of two clients' pair mask; it is the same for both."""
    return derive_key(agreed, context, Purpose.PAIR_MASK, min(one, other), max(one, other))


def sealing_key(agreed: bytes, context: bytes, sender: int, receiver: int) -> bytes:
    """Return the key that seals the shares of one client for another; it is used once."""
    return derive_key(agreed, context, Purpose.SHARES, sender, receiver)
