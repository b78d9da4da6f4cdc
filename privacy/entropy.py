"""Random bytes for keys and noise: from the operating system, handed in wherever they are used.

A function that needs randomness takes an `Entropy` argument, so that a test can replay it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

__all__ = ["Entropy", "system_entropy"]

Entropy = Callable[[int], bytes]
"""Returns so many bytes that nobody can predict."""


def system_entropy(size_bytes: int) -> bytes:
    """Return bytes of the operating system's cryptographic generator."""
    return secrets.token_bytes(size_bytes)
