"""The operating system's random bytes."""

from __future__ import annotations

from meadow.randomness.entropy import system_entropy, words_from


def test_as_many_bytes_as_asked_for_and_never_the_same():
    """Two draws of 32 bytes are equal with a probability of 2^-256."""
    assert len(system_entropy(5)) == 5
    assert system_entropy(32) != system_entropy(32)


def test_words_are_the_keystream_of_one_key():
    """The known one of AES-256 for a key of zeros; however many are taken at a time."""
    words = words_from(bytes)
    found = [*words(1), *words(3), *words(4)]
    assert found == [*words_from(bytes)(8)]
    assert found[0].tobytes() + found[1].tobytes() == bytes.fromhex(
        "dc95c078a2408989ad48a21492842087"
    )
