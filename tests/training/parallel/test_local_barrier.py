"""The barrier of the ranks of one machine, here threads: none passes before all have come."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from meadow.training.parallel import local_barrier
from meadow.training.parallel.local_barrier import LocalBarrier

PATIENCE_S = 30.0


def mesh(ranks: int, timeout_s: float = PATIENCE_S) -> tuple[list[LocalBarrier], list[list]]:
    """Return every rank's barrier, and the sockets that each holds."""
    peers: list[list[socket.socket]] = [[] for _ in range(ranks)]
    for rank in range(ranks):
        for other in range(rank):
            ours, theirs = socket.socketpair()
            peers[rank].append(ours)
            peers[other].append(theirs)
    return [LocalBarrier(each, timeout_s) for each in peers], peers


@pytest.mark.parametrize("looking_s", [0.0, local_barrier.LOOKING_S])
@pytest.mark.parametrize("ranks", [2, 3])
def test_none_passes_before_all_have_come(
    ranks: int, looking_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over many turns with pauses of their own, no rank is ever a turn ahead of another."""
    monkeypatch.setattr(local_barrier, "LOOKING_S", looking_s)
    barriers, _ = mesh(ranks)
    come = [0] * ranks
    behind: list[int] = []

    def go(rank: int) -> None:
        for turn in range(1, 101):
            if (turn + rank) % 17 == 0:
                time.sleep(0.005)
            come[rank] = turn
            barriers[rank].wait()
            behind.extend(turn for count in come if count < turn)

    with ThreadPoolExecutor(ranks) as pool:
        for done in [pool.submit(go, rank) for rank in range(ranks)]:
            done.result(PATIENCE_S)
    assert come == [100] * ranks
    assert not behind


def test_a_lost_rank_is_noticed() -> None:
    """A rank whose process ended does not keep the others waiting."""
    (first, _), (_, second) = mesh(2)
    waiting = threading.Timer(0.05, second[0].close)
    waiting.start()
    with pytest.raises(ConnectionError):
        first.wait()
    with pytest.raises(ConnectionError):
        first.wait()


def test_a_rank_that_hangs_is_noticed() -> None:
    """Nobody waits for ever."""
    (first, _), _held = mesh(2, timeout_s=0.1)
    with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        first.wait()
