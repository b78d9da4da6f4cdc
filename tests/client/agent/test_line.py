"""How large chunks are, from what the line carries and loses."""

from __future__ import annotations

from meadow.client.agent.line import CHUNK_BYTES_MIN, UPLOAD_CHUNK_BYTES_MAX, LineState


def test_chunks_shrink_with_losses_and_grow_again() -> None:
    """Losses without progress lead to the smallest chunk, and a steady line to the largest."""
    line = LineState()
    assert line.is_steady
    for _ in range(10):
        line.lost()
    assert line.chunk_bytes == CHUNK_BYTES_MIN and not line.is_steady
    line.carried(1 << 30)
    assert line.chunk_bytes == UPLOAD_CHUNK_BYTES_MAX and line.is_steady


def test_a_loss_after_many_chunks_changes_nothing() -> None:
    """A connection that carried much before it broke carried chunks of the right size."""
    line = LineState()
    line.lost()
    size = line.chunk_bytes
    line.carried(10 * size)
    line.lost()
    assert line.chunk_bytes == size


def test_the_servers_wish_is_a_bound() -> None:
    """Chunks are no larger than the server wishes, and no smaller than the least."""
    line = LineState()
    line.allow_chunks(64 << 10)
    line.carried(1 << 30)
    assert line.chunk_bytes == 64 << 10
    line.allow_chunks(1)
    assert line.chunk_bytes == CHUNK_BYTES_MIN


def test_only_what_is_new_counts_as_carried() -> None:
    """What the server says that it has is counted once."""
    line = LineState()
    assert not line.begin("x")
    line.arrived("x", 500)
    assert line.begin("x")
    line.arrived("x", 700)
    assert line.carried_bytes == 700
    line.done("x")
    assert not line.begin("x")
