"""Masks: AES known answers, and that they cancel."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from meadow.privacy.secagg.protocol.masks import (
    BLOCK,
    KEYS_AT_ONCE,
    PART_VALUES,
    Keystream,
    Mask,
    add_masks,
    stream_buffer,
)


def test_the_first_block_is_the_published_one():
    """AES-256 of zeros under a key of zeros, as in the known-answer tests of AES."""
    values = Keystream(bytes(32)).take(4, stream_buffer())
    assert values.tobytes().hex() == "dc95c078a2408989ad48a21492842087"


def test_the_keystream_is_encrypted_counters():
    """Block by block with AES alone: the counter is big-endian and begins at zero."""
    key = bytes(range(32))
    encryptor = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    counters = b"".join(number.to_bytes(16, "big") for number in range(300))
    expected = np.frombuffer(encryptor.update(counters), "<u4")
    total = np.zeros(1200, np.uint32)
    add_masks(total, [Mask(key, 1)])
    np.testing.assert_array_equal(total, expected)


def test_the_stream_does_not_depend_on_how_it_is_cut():
    """Not even where a cut is not at an AES block."""
    stream, buffer = Keystream(b"k" * 32), stream_buffer()
    pieces = [stream.take(count, buffer).copy() for count in (1, 2, 5, 100, 3)]
    whole = Keystream(b"k" * 32).take(111, buffer)
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize("length", [1, 3, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
@pytest.mark.parametrize("count", [1, KEYS_AT_ONCE + 1])
def test_masks_cancel(length, count):
    """Adding and subtracting the same ones leaves what was there, at any length."""
    before = np.arange(length, dtype=np.uint32)
    keys = [bytes([number]) * 32 for number in range(count)]
    total = before.copy()
    add_masks(total, [Mask(key, 1) for key in keys])
    assert length < 3 or not np.array_equal(total, before)
    add_masks(total, [Mask(key, -1) for key in reversed(keys)])
    np.testing.assert_array_equal(total, before)


@pytest.mark.parametrize("length", [PART_VALUES * 2, PART_VALUES * 5 + 3])
def test_threads_add_the_same(length):
    """Each begins in the middle of every keystream, and nobody's part is left out."""
    masks = [Mask(bytes([number]) * 32, 1 if number % 2 else -1) for number in range(3)]
    alone, together = np.zeros(length, np.uint32), np.zeros(length, np.uint32)
    add_masks(alone, masks)
    add_masks(together, masks, threads=3)
    np.testing.assert_array_equal(together, alone)
