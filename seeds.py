"""Independent random streams from one seed: cohorts, batches, dropout and noise."""

from __future__ import annotations

from hashlib import sha256

__all__ = ["derive"]


def derive(seed: int, *parts: int | str) -> int:
    """Return the seed of the stream that `parts` name, for instance (round, client, "batches").

    Guarantees: the same arguments give the same 63-bit number on every machine and in every
        process; different arguments, as for any hash, unrelated ones. The int 1 and the text
        "1" differ, and so do ("ab", "c") and ("a", "bc").
    """
    digest = sha256()
    for part in (seed, *parts):
        text = f"{'i' if isinstance(part, int) else 's'}{part}".encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return int.from_bytes(digest.digest()[:8], "big") >> 1
