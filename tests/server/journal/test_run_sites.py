"""Which sites a run has, and in which order: drawn up once, and kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from meadow.server.journal.journal import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """Six sites: two are enrolled, with a tag; one without; one is revoked, one only invited, and
    one was revoked and is back."""
    with closing(Journal(tmp_path / "journal.sqlite")) as made:
        for name in ("a", "b", "c", "revoked", "invited", "back"):
            made.sites.invite(name, f"hash-{name}", now_s=0.0, expires_at_s=9.0)
            if name != "invited":
                enroll(made, name)
        for name in ("revoked", "back"):
            made.sites.revoke(name, now_s=1.0)
        made.sites.invite("back", "hash-again", now_s=0.0, expires_at_s=9.0)
        made.sites.redeem("hash-again", now_s=2.0)
        made.sites.certify("back", "serial-again", shown=None, until_s=9.0)
        for name in ("a", "c"):
            made.sites.tag(name, ["x", "y"])
        yield made


def enroll(journal: Journal, name: str) -> None:
    """Let a client redeem its token."""
    journal.sites.redeem(f"hash-{name}", now_s=1.0)
    journal.sites.certify(name, f"serial-{name}", shown=None, until_s=9.0)


def test_they_are_the_enrolled_and_unrevoked_with_the_runs_tags(journal: Journal) -> None:
    """By node id; each run has its own."""
    assert journal.runs.sites(1, tags=[], asked=[1]) == [1, 2, 3, 6]
    assert journal.runs.sites(2, tags=["x"], asked=[]) == [1, 3]
    assert journal.runs.sites(3, tags=["x", "z"], asked=[]) == []


def test_they_stay_whatever_happens_to_the_fleet(journal: Journal, tmp_path: Path) -> None:
    """Also after a restart; who joins later comes after all others once it is asked."""
    assert journal.runs.sites(1, tags=[], asked=[]) == [1, 2, 3, 6]
    journal.sites.revoke("a", now_s=3.0)
    enroll(journal, "invited")
    journal.sites.tag("b", ["x"])
    with closing(Journal(tmp_path / "journal.sqlite")) as again:
        assert again.runs.sites(1, tags=[], asked=[2, 3]) == [1, 2, 3, 6]
        assert again.runs.sites(1, tags=[], asked=[2, 5]) == [1, 2, 3, 6, 5]
        assert again.runs.sites(1, tags=[], asked=[]) == [1, 2, 3, 6, 5]
        assert again.runs.sites(2, tags=[], asked=[]) == [2, 3, 5, 6]


def test_a_secret_cohort_is_not_to_be_read_from_the_list(journal: Journal) -> None:
    """Whoever joins later is in it from the next round on, drawn or not; and stays where it is."""
    before = journal.runs.sites(1, tags=[], asked=[1], by_sampling=True)
    enroll(journal, "invited")
    drawn, missed = ([2, 5], [2])
    assert journal.runs.sites(1, tags=[], asked=missed, by_sampling=True) == [*before, 5]
    journal.runs.sites(2, tags=["x"], asked=[], by_sampling=True)
    assert journal.runs.sites(1, tags=[], asked=drawn, by_sampling=True) == [*before, 5]
