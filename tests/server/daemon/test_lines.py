"""Which lines are slow: by the uploads that came over them, and after a kill too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from meadow.server.daemon.lines import (
    FAST_BYTES_PER_S,
    MEASURED_BYTES_MIN,
    SLOW_BYTES_PER_S,
    SLOW_S_MIN,
    Lines,
)
from meadow.server.daemon.threads import JournalThread
from meadow.server.journal.journal import Journal

SIZE = 20_000_000


@contextmanager
def lines_of(folder: Path) -> Iterator[Lines]:
    """The lines of a server's folder."""
    with (
        closing(Journal(folder / "journal.sqlite")) as journal,
        closing(JournalThread(journal)) as thread,
    ):
        yield Lines(journal, thread)


def measure(folder: Path, *rates: float, size_bytes: int = SIZE) -> dict[int, int]:
    """Return the slow lines after client 7's uploads at these rates."""

    async def upload() -> dict[int, int]:
        with lines_of(folder) as lines:
            for rate in rates:
                await lines.measured(7, size_bytes, size_bytes / rate)
            return dict(lines.slow)

    return asyncio.run(upload())


def test_a_slow_line_is_slow_until_it_is_fast(tmp_path: Path) -> None:
    """Between the two bounds it stays what it was, so that a choice does not change each round."""
    between = (SLOW_BYTES_PER_S + FAST_BYTES_PER_S) / 2
    assert measure(tmp_path, between) == {}
    assert measure(tmp_path, 2.5e6) == {7: 2_500_000}
    assert measure(tmp_path, between, between) == {7: 2_500_000}
    assert measure(tmp_path, FAST_BYTES_PER_S) == {}
    assert measure(tmp_path, between) == {}


def test_it_is_slow_when_the_server_was_killed(tmp_path: Path) -> None:
    """It is in the journal when `measured` returns: nothing is closed here."""

    async def main() -> None:
        with lines_of(tmp_path) as lines:
            await lines.measured(7, SIZE, 10.0)
            with lines_of(tmp_path) as again:
                assert again.slow == lines.slow == {7: 2_000_000}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("size_bytes", "seconds"),
    [
        (MEASURED_BYTES_MIN - 1, 60.0),
        (MEASURED_BYTES_MIN, SLOW_S_MIN * 0.99),
        (SIZE, 0.0),
        (0, 0.0),
    ],
)
def test_what_says_nothing_changes_nothing(tmp_path: Path, size_bytes: int, seconds: float) -> None:
    """Small uploads at any rate, and those that take less than a second."""

    async def main() -> None:
        with lines_of(tmp_path) as lines:
            await lines.measured(7, size_bytes, seconds)
            assert lines.slow == {}

    asyncio.run(main())
