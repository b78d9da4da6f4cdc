"""What is shown of a run: on a terminal, in a log, to a program."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from meadow.cli.live import RunView
from meadow.cli.output import Format
from meadow.reports.sentences import amount

ROW = {
    "round": 1,
    "duration_s": 0.5,
    "clients": 3,
    "failures": 1,
    "train": {"accuracy": 0.5, "loss": 1.25},
    "evaluate": {},
    "server": {"accuracy": 0.75, "loss": None},
    "bytes_sent": 1200,
    "bytes_received": 0,
}

EVENTS: dict[str, tuple[dict[str, Any], str | None]] = {
    "status": ({"status": "running", "cause": ""}, "run 1 is running"),
    "ready": ({"rounds": 4}, None),
    "waiting": ({"connected": 1, "needed": 3}, "waiting for clients: 1 of 3"),
    "round_started": ({"round": 1, "clients": 4}, None),
    "client_failed": (
        {"round": 1, "client": 7, "reason": "OSError: no disk"},
        "round 1: client 7 failed: OSError: no disk",
    ),
    "update_refused": (
        {"round": 1, "client": 8, "field": "tensor 'a'", "reason": "is missing"},
        "round 1: client 8: update refused: tensor 'a' is missing",
    ),
    "evaluation_refused": (
        {"round": 1, "client": 9, "field": "num-examples", "reason": "is missing"},
        "round 1: client 9: evaluation refused: num-examples is missing",
    ),
    "update_clipped": (
        {"round": 1, "client": 3, "norm": 12.5, "norm_max": 1.0},
        "round 1: client 3: update clipped from norm 12.5 to 1",
    ),
    "round_committed": (
        ROW,
        (
            "round 1/4  train loss 1.2500 accuracy 0.5000  server loss - accuracy 0.7500  "
            "clients 3 (1 failed)  0.50 s  1.2 kB out  0 B in"
        ),
    ),
    "resumed": ({"round": 1}, "going on after round 1"),
    "worker_died": ({"how": "signal 9"}, "the run worker died (signal 9); it is started again"),
    "checkpoint_damaged": (
        {"file": "round-000002.json", "reason": "checksum"},
        "round-000002.json is damaged (checksum); going back to the checkpoint before it",
    ),
    "round_waits": (
        {"round": "3", "step": "3/train/0", "missing": [2, 5], "updates": 4, "quorum": 6},
        "round 3 needs 6 clients and has 4: no sign of life of 2, 5",
    ),
    "compression_chosen": (
        {
            "round": 2,
            "upload": "int8",
            "download": "int8",
            "slow": "a (20 Mbit/s)",
            "no_longer_slow": "b",
        },
        "round 2: slow lines, int8 up and down: a (20 Mbit/s); no longer slow, not compressed: b",
    ),
    "stopping": ({"after": "this round"}, "stopping after this round"),
    "early_stopped": ({"cause": "no better"}, "stopped early: no better"),
    "traceback": ({"text": "Traceback ..."}, None),
    "something_new": ({}, None),
}


def test_every_event_is_a_line_or_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal people read sentences, and no event of a later version breaks that."""
    with RunView("run 1") as view:
        for kind, (detail, _) in EVENTS.items():
            view.show(kind, detail)
    lines = [line for _, line in EVENTS.values() if line is not None]
    assert capsys.readouterr().out.splitlines() == lines


def test_programs_get_every_event_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """With --format json nothing is left out or reworded."""
    with RunView("run 1", format=Format.JSON) as view:
        for kind, (detail, _) in EVENTS.items():
            view.show(kind, detail)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said == [{"event": kind, **detail} for kind, (detail, _) in EVENTS.items()]


def test_a_failure_says_at_what_and_where_the_rest_is(capsys: pytest.CaptureFixture[str]) -> None:
    """By the site's name, with nothing that commands a terminal."""
    failed = {"round": 2, "client": 7, "site": "clinic", "reason": "OSError: \x1b[2Jno disk"}
    with RunView("run 1") as view:
        view.show("client_failed", {**failed, "during": "evaluate", "log": "run/tracebacks.log"})
        view.show("client_failed", {**failed, "during": "query"})
        view.show("app_raised", {"reason": "KeyError: 1", "log": "tracebacks.log"})
    assert capsys.readouterr().out.splitlines() == [
        (
            "round 2: clinic failed to evaluate: OSError: ?[2Jno disk; the rest is in "
            "run/tracebacks.log"
        ),
        "round 2: clinic failed to answer: OSError: ?[2Jno disk",
        "the app raised KeyError: 1; the rest is in tracebacks.log",
    ]


def test_many_failures_do_not_flood(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a thousand failed clients five are told, in each round anew."""
    with RunView("run 1") as view:
        for number in (1, 2):
            for client in range(1000):
                view.show("client_failed", {"round": number, "client": client, "reason": "gone"})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert lines[4:7] == [
        "round 1: client 4 failed: gone",
        "round 1: more clients failed",
        "round 2: client 0 failed: gone",
    ]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_a_table_that_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """The last picture has headings, every round and the progress; brackets are no markup."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    with RunView("run [1]") as view:
        view.show("ready", {"rounds": 2})
        view.show("client_failed", {"round": 1, "client": 7, "reason": "[bold]odd[/nonsense]"})
        for number in (1, 2):
            row = {**ROW, "round": number, "failures": 0, "evaluate": {"loss": 1, "accuracy": 0.5}}
            view.show("round_committed", row)
    out = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    assert "round 1: client 7 failed: [bold]odd[/nonsense]" in out
    picture = out[out.rindex("train") :].splitlines()
    assert picture[0].split() == ["train", "evaluate", "evaluate", "server", "server"]
    wide = ["sent", "received"] if columns == 120 else []
    headings = ["round", "clients", *["loss", "accuracy"] * 3, "seconds", *wide]
    assert picture[1].split() == headings
    numbers = ["3", "1.2500", "0.5000", "1.0000", "0.5000", "-", "0.7500", "0.50"]
    assert [line.split()[: len(numbers) + 1] for line in picture[2:4]] == [
        ["1", *numbers],
        ["2", *numbers],
    ]
    assert "run [1]" in picture[4] and "2/2" in picture[4]
    assert max(map(len, picture)) <= columns


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345_678, "12.3 MB"), (5e12, "5000.0 GB")],
)
def test_amounts(size_bytes: float, text: str) -> None:
    """Sizes are said in the unit that suits them."""
    assert amount(size_bytes) == text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_a_narrow_terminal_drops_columns_never_digits(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Every number that is shown is whole, and the reader hears how many columns are not."""
    monkeypatch.setenv("COLUMNS", str(width))
    view = RunView("run")
    metrics = {f"a-rather-long-metric-{n}": 0.1234 + n for n in range(8)}
    row = {**ROW, "train": {"loss": 1.25, **metrics}, "evaluate": {"loss": 2.5, **metrics}}
    for number in range(1, 4):
        view.show("round_committed", {**row, "round": number, "duration_s": 12345.678})
    with view._console.capture() as captured:
        view._console.print(view._table())
    shown = captured.get()
    assert "…" not in shown
    assert all(len(line.rstrip()) <= width for line in shown.splitlines())
    lines = [line.split() for line in shown.splitlines() if line.strip()[:1] in ("1", "2", "3")]
    assert [line[:1] for line in lines[:3]] == [["1"], ["2"], ["3"]]
    assert all("1.2500" in line and "12345.68" in line for line in lines[:3])
    assert "more columns do not fit" in shown


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_long_numbers_are_whole_or_not_there(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Of millions of clients and of tiny or huge metrics, no digit is cut, and none becomes zero."""
    monkeypatch.setenv("COLUMNS", str(width))
    view = RunView("run")
    train = {"loss": 1.2346e-12, "accuracy": 123456789.0, "perplexity": 1e300, "tiny": -4.5678e-7}
    counts = {"round": 100_000, "clients": 1_000_000, "failures": 999_999, "duration_s": 1234567.8}
    for row in ({**ROW, **counts, "train": train}, ROW):
        view.show("round_committed", row)
    with view._console.capture() as captured:
        view._console.print(view._table())
    picture = captured.get().splitlines()
    assert all(len(line.rstrip()) <= width for line in picture)
    (line,) = (line for line in picture if line.startswith("100000 "))
    whole = {"100000", "1000000", "(999999", "failed)", "1.235e-12", "1.235e+08", "1e+300"}
    whole |= {"-4.568e-07", "-", "0.7500", "1234567.80", "1.2", "kB", "0", "B"}
    assert set(line.split()) <= whole
    assert {"1000000", "(999999"} <= set(line.split())


def test_what_is_tried_is_shown_while_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the progress bar, and to programs; it is no line that stays."""
    view = RunView("run")
    view.show("executor_trial", {"executor": "sequential with 2 threads", "clients": 16})
    with view._console.capture() as captured:
        view._console.print(view._render())
    assert "trying sequential with 2 threads on 16 clients" in captured.get()


def test_a_run_that_ends_early_leaves_no_spinner(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error nothing turns any more; after the last round the full bar stays."""
    from rich.console import Console

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for rounds, stays in ((1, True), (2, False)):
        view = RunView("my run")
        view._console = Console(force_terminal=True, width=100)
        view._live = None
        view.show("ready", {"rounds": rounds})
        view._rows.append(ROW)
        view._progress.update(view._task, completed=1)
        view._over = True
        with view._console.capture() as captured:
            view._console.print(view._render())
        assert ("my run" in captured.get()) is stays
