"""Random bytes for keys and noise: from the operating system, handed in wherever they are used.

A function that needs randomness takes an `Entropy` argument, so that a test can replay it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

__all__ = ["Entropy", "system_entropy", "words_from"]

KEY_BYTES = 32

Entropy = Callable[[int], bytes]
"""Returns so many unpredictable bytes."""


def system_entropy(size_bytes: int) -> bytes:
    """Return bytes of the operating system's cryptographic generator."""
    return secrets.token_bytes(size_bytes)


def words_from(entropy: Entropy) -> Callable[[int], NDArray[np.uint64]]:
    """Return a source of words of 64 bits: AES-256 in counter mode, under a key that is used for
    nothing else."""
    cipher = Cipher(algorithms.AES256(entropy(KEY_BYTES)), modes.CTR(bytes(16))).encryptor()
    return lambda count: np.frombuffer(cipher.update(bytes(8 * count)), np.uint64)
