"""What an app prints and logs: kept in the run's folder, also from another process."""

from __future__ import annotations

import logging
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from meadow.run import app_output
from meadow.run.app_output import kept_output, show_output, taken_output


def test_a_task_that_prints_nothing_has_no_file(tmp_path: Path) -> None:
    """And a run that goes on adds to what it printed before."""
    with kept_output(tmp_path, anew=False):
        pass
    assert list(tmp_path.iterdir()) == []
    for text in ("one", "two"):
        with kept_output(tmp_path, anew=False):
            print(text)
    assert (tmp_path / "app.log").read_text() == "one\ntwo\n"
    with kept_output(tmp_path, anew=True):
        print("three")
    assert (tmp_path / "app.log").read_text() == "three\n"


def test_a_full_file_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so, and the terminal still shows everything."""
    monkeypatch.setattr(app_output, "LOG_BYTES_MAX", 1000)
    with kept_output(tmp_path, anew=True):
        for number in range(1000):
            print(f"line {number}")
    text = (tmp_path / "app.log").read_text()
    assert len(text) < 1100 and text.endswith("\n(no more is kept)\n")
    assert "line 999" in capsys.readouterr().out


def test_what_another_process_prints_comes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its order, to the streams it was for, Flower's log included, up to a bound."""
    pytest.importorskip("flwr.common.logger")  # which adds the handler of Flower's log
    monkeypatch.setattr(app_output, "TAKEN_CHARS_MAX", 200)
    before = sys.stdout, sys.stderr
    with taken_output() as taken:
        print("a", 1)
        print("b", file=sys.stderr)
        logging.getLogger("flwr").error("logged")
        print("x" * 1000)
        print("more")
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr() == ("", "")
    assert sum(len(text) for _, text in taken) == 200
    with kept_output(tmp_path, anew=True):
        show_output(taken)
    shown, kept = capsys.readouterr(), (tmp_path / "app.log").read_text()
    assert shown.out.startswith("a 1\nxxx") and "b\n" in shown.err and "logged" in shown.err
    assert kept.index("a 1") < kept.index("b\n") < kept.index("logged") < kept.index("xxx")
    show_output([("no stream", "text")])
    assert capsys.readouterr().out == "text"


def test_a_log_whose_stream_was_closed_is_no_obstacle(tmp_path: Path) -> None:
    """Flower's log may hold a stream that is gone, as the captured output of an earlier test."""
    gone = TextIOWrapper(BytesIO())
    handler = logging.StreamHandler(gone)
    logger = logging.getLogger("flwr")
    logger.addHandler(handler)
    try:
        gone.close()
        for anew in (True, False):  # what was put in its place stays usable
            with kept_output(tmp_path, anew=anew):
                logger.error("logged")
    finally:
        logger.removeHandler(handler)
    assert "logged" in (tmp_path / "app.log").read_text()
