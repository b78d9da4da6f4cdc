"""The page: self-contained, harmless, the same for the same folders, and small."""

from __future__ import annotations

import builtins
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meadow.errors import ConfigError
from meadow.reports.page import report_page, write_report
from meadow.reports.run_record import read_run
from meadow.reports.shown_run import RUNS_MAX, duration, number

from .conftest import MakeRun

EVIL = '</title><script>alert(1)</script><img src=x onerror="alert(2)">$\\frac{1}'
CLIENTS = [
    {
        "round": each,
        "clients": [1, 2, 3],
        "train": {"loss": [1 / each, 2 / each, 3 / each]},
        "evaluate": {"clients": [1, 2], "accuracy": [0.1 * each, 0.05 * each]},
        "late": [4],
    }
    for each in range(1, 7)
]


class Page(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.headings: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag and what it refers to."""
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "xlink:href", "src", "srcset", "data", "action"):
                self.links.append(value or "")
            self.links += [f"#{each}" for each in re.findall(r"url\(#([^)]*)\)", value or "")]
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data: str) -> None:
        """Note the text of headings."""
        if self.tags and self.tags[-1] in ("h1", "h2") and data.strip():
            self.headings.append(data)


def page_of(*folders: Path) -> tuple[str, Page]:
    """Return the report of folders, as text and parsed."""
    text = report_page([read_run(folder) for folder in folders])
    return text, Page(text)


def test_a_page_needs_nothing_else(make_run: MakeRun) -> None:
    """No script, no link out of the page; each id is there once and each reference leads to one."""
    text, page = page_of(make_run("a", clients=CLIENTS), make_run("b", clients=CLIENTS, rate=0.2))
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(page.tags)
    outside = [link for link in page.links if not link.startswith(("#", "data:image/png;base64,"))]
    assert not outside and not page.handlers and "@import" not in text
    assert len(page.ids) == len(set(page.ids)) and page.ids
    assert {link[1:] for link in page.links if link[0] == "#"} == set(page.ids)
    assert "default-src &#x27;none&#x27;" in text


def test_a_malicious_folder_stays_text(make_run: MakeRun, tmp_path: Path) -> None:
    """Names, causes, metrics, settings and clients of a folder cannot become code."""
    metrics = {EVIL: 0.5, "loss": 1.0}
    clients = [{"round": 1, "clients": [EVIL], "train": {EVIL: [1.0]}}]
    folder = make_run("evil", status="failed", cause=EVIL, train=metrics, clients=clients)
    said = json.dumps(EVIL)  # is a TOML text, too
    (folder / "meadow.toml").write_text(f"[{said}]\n{said} = {said}\n")
    evil = folder.rename(tmp_path / EVIL.replace("/", ""))
    text, page = page_of(evil)
    assert "script" not in page.tags and "img" not in page.tags and not page.handlers
    assert "&lt;script&gt;alert(1)" in text
    assert page.headings[0] == evil.name


def test_the_same_folders_give_the_same_bytes(make_run: MakeRun, tmp_path: Path) -> None:
    """No date, no random id: a report can be kept under version control."""
    folders = [make_run("a", clients=CLIENTS), make_run("b", rate=0.3)]
    sizes = [write_report(folders, tmp_path / name) for name in ("1.html", "2.html")]
    first, second = ((tmp_path / name).read_bytes() for name in ("1.html", "2.html"))
    assert first == second and sizes == [len(first)] * 2


def test_what_the_folders_have_is_shown(make_run: MakeRun) -> None:
    """Sections appear for what was recorded, and only for that."""
    _, plain = page_of(make_run("plain"))
    always = ["Runs", "Final round", "Best round", "Metrics by round", "Metrics by time", "Rounds"]
    assert plain.headings == ["plain", *always]
    text, full = page_of(
        make_run("full", clients=CLIENTS, virtual_s=3.0, privacy={"epsilon": 2.5, "delta": 1e-5})
    )
    for heading in ("Metrics by virtual time", "Differences between clients", "Participation"):
        assert heading in full.headings
    assert full.headings[-1] == "Privacy" and ">2.5000<" in text
    assert "3 clients took part: in 6 to 6 rounds" in text


def test_runs_are_compared(make_run: MakeRun) -> None:
    """Settings that differ are named, equal ones are in the details, the best value is bold."""
    worse = {"loss": 9.0, "accuracy": 0.01}
    better, other = make_run("a", rate=0.5), make_run("b", train=worse)
    text, page = page_of(better, other)
    assert page.headings[0] == "2 runs compared"
    differ = text[text.index("Settings that differ") : text.index("Final round")]
    assert "training.learning_rate" in differ and "strategy.name" not in differ
    assert "<strong>0.4512</strong>" in text and "<strong>9.0000</strong>" not in text


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path, make_run: MakeRun) -> None:
    """As much of the path is shown as it takes."""
    for parent in ("x", "y"):
        (tmp_path / parent).mkdir()
        make_run("run").rename(tmp_path / parent / "run")
    text, _ = page_of(tmp_path / "x" / "run", tmp_path / "y" / "run")
    assert " x/run<" in text and " y/run<" in text


def test_a_run_that_did_not_finish_says_why(make_run: MakeRun) -> None:
    """Failed, stopped and under way are told at the top."""
    text, _ = page_of(
        make_run("a", status="failed", cause="quorum not met"),
        make_run("b", status="stopped"),
        make_run("c", status=None, rounds=3),
    )
    assert "</strong> failed after round 6: quorum not met</p>" in text
    assert "</strong> stopped after round 6.</p>" in text
    assert "</strong> is under way, or was killed, after round 3.</p>" in text


def test_a_run_without_rounds_is_a_page_too(make_run: MakeRun) -> None:
    """A run that failed before its first round has a cause and no curves."""
    text, page = page_of(make_run("a", rounds=0, status="failed", cause="no clients"))
    assert "failed before its first round was complete: no clients" in text
    assert "Metrics by round" not in page.headings


def test_a_large_run_gives_a_small_page(make_run: MakeRun) -> None:
    """10,000 clients by 1,000 rounds and 5,000 points a curve stay below two megabytes."""
    rng = np.random.default_rng(1)
    clients = [
        {"round": each, "clients": rng.choice(10_000, size=50).tolist(), "train": {"loss": [each]}}
        for each in range(1, 1001)
    ]
    text, _ = page_of(make_run("large", rounds=5000, clients=clients))
    assert len(text) < 2_000_000
    assert "A cell is " in text


def test_a_diverged_run_is_a_page_too(make_run: MakeRun) -> None:
    """Values at the ends of a float, or none at all, break no axis; the table still has them."""
    text, page = page_of(
        make_run("high", train={"loss": 1.7e308, "accuracy": -1.7e308}, duration_s=1e300),
        make_run("none", train={"loss": float("inf")}, clients=[{"round": 1, "clients": [1]}]),
    )
    assert "1.7e+308" in text and "Metrics by round" in page.headings


def test_very_many_metrics_are_bounded(make_run: MakeRun) -> None:
    """Names come from files: some are drawn, the others counted; traffic is never pushed out."""
    text, page = page_of(make_run("a", train={f"m{each}": 0.5 for each in range(100)}))
    assert len(re.findall('aria-label="train m', text)) < 60
    assert "more metrics are not shown." in text
    assert ">240.0 kB<" in text and "Rounds" in page.headings


def test_too_many_runs_are_refused(make_run: MakeRun) -> None:
    """Beyond what colours and dashes tell apart there is an error, not a muddle."""
    record = read_run(make_run("a"))
    with pytest.raises(ConfigError, match=f"at most {RUNS_MAX} runs, got {RUNS_MAX + 1}; give"):
        report_page([record] * (RUNS_MAX + 1))


def test_without_matplotlib_the_extra_is_named(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to install, before anything is read or written."""
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError("No module named 'matplotlib'")
        return real(name, *rest, **more)

    folder = make_run("a")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"install it with pip install 'meadow-fl\[plots\]'"):
        write_report([folder], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.0 s"), (119, "119.0 s"), (600, "10.0 min"), (7200, "2.0 h")]
)
def test_durations(seconds: float, text: str) -> None:
    """Times are said in the unit that suits them."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5000"), (0.0, "0.0000"), (1e-5, "1e-05"), (None, "-"), (1e6, "1e+06")],
)
def test_numbers(value: float | None, text: str) -> None:
    """Metrics have four places, or four digits where these would say nothing."""
    assert number(value) == text
