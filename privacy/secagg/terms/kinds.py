"""The types of the Flower messages that a secure round consists of; `secure_terms` says of what."""

from __future__ import annotations

__all__ = ["ANSWERS", "IDENTITY", "SUFFIX", "is_answer", "is_secure", "is_talk"]

SUFFIX = ".secure"
"""An instruction is of the type "train" or "evaluate" and this."""
IDENTITY = "query.secure_identity"
ANSWERS = (
    "query.secure_vector",
    "query.secure_confirm",
    "query.secure_unmask",
)


def is_answer(message_type: str) -> bool:
    """Return whether a message goes on with a session that has begun."""
    return message_type in ANSWERS


def is_talk(message_type: str) -> bool:
    """Return whether a message is about a session, and asks nothing of the data."""
    return message_type == IDENTITY or is_answer(message_type)


def is_secure(message_type: str) -> bool:
    """Return whether a message belongs to a secure round."""
    instructions = (f"train{SUFFIX}", f"evaluate{SUFFIX}")
    return message_type in (IDENTITY, *ANSWERS, *instructions)
