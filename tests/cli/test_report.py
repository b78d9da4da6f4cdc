"""`meadow report`: where the page goes, what is said of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Meadow

ROW = {
    "round": 1,
    "duration_s": 0.5,
    "clients": 2,
    "failures": 0,
    "train": {"loss": 1.5},
    "evaluate": {},
    "server": {},
    "bytes_sent": 10,
    "bytes_received": 10,
    "privacy": None,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the runs a and b, in which commands are called."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write_run(tmp_path / name)
    return tmp_path


def write_run(folder: Path) -> None:
    """Write a run that is under way."""
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(json.dumps(ROW) + "\n")


def test_the_report_of_a_run_lies_in_its_folder(meadow: Meadow, here: Path) -> None:
    """One run: report.html beside its other files; again replaces it."""
    for _ in range(2):
        said = meadow("report", "a")
        assert (said.code, said.err) == (0, "")
        assert said.out.startswith("1 run in a/report.html (") and said.out.endswith(" kB)\n")
    assert (here / "a" / "report.html").read_text().startswith("<!DOCTYPE html>\n<html")


def test_the_report_of_several_lies_here(meadow: Meadow, here: Path) -> None:
    """A comparison is of no single folder; programs hear what is in it."""
    said = meadow("report", "a", "b", "--format", "json")
    (told,) = said.objects
    assert told == {
        "event": "report",
        "out": "report.html",
        "runs": ["a", "b"],
        "size_bytes": (here / "report.html").stat().st_size,
    }


def test_out_says_where(meadow: Meadow, here: Path) -> None:
    """--out names the file; a folder is refused."""
    assert meadow("report", "a", "--out", "page.html").code == 0
    assert (here / "page.html").is_file() and not (here / "a" / "report.html").exists()
    said = meadow("report", "a", "--out", "b")
    assert (said.code, said.out) == (2, "")
    assert said.err == "meadow: --out b is a folder; give a file, as b/report.html\n"


def test_a_sweep_is_its_runs(meadow: Meadow, here: Path) -> None:
    """Given a sweep's folder, its runs are compared, in a page beside sweep.json."""
    sweep = here / "sweep"
    for name in ("seed=1", "seed=2"):
        write_run(sweep / name)
    (sweep / "sweep.json").write_text("{}")
    said = meadow("report", "sweep")
    assert said.out.startswith("2 runs in sweep/report.html (")
    page = (sweep / "report.html").read_text()
    assert "2 runs compared" in page and " seed=1<" in page


def test_a_sweep_that_has_not_begun_is_refused(meadow: Meadow, here: Path) -> None:
    """There is nothing to show yet, and the error says so."""
    (here / "sweep").mkdir()
    (here / "sweep" / "sweep.json").write_text("{}")
    said = meadow("report", "sweep")
    assert said.code == 2 and "sweep: no run of the sweep has completed a round" in said.err


def test_a_folder_that_is_no_run_is_refused(meadow: Meadow, here: Path) -> None:
    """Exit code 2, one line, no page."""
    (here / "empty").mkdir()
    said = meadow("report", "a", "empty")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("meadow: empty: is no run folder: it has no metrics.jsonl; give")
    assert said.err.count("\n") == 1 and not (here / "report.html").exists()
