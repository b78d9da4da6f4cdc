"""The operating system's random bytes."""

from __future__ import annotations

from meadow.privacy.entropy import system_entropy


def test_as_many_bytes_as_asked_for_and_never_the_same():
    """Two draws of 32 bytes are equal with a probability of 2^-256."""
    assert len(system_entropy(5)) == 5
    assert system_entropy(32) != system_entropy(32)
