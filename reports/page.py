"""The report: one HTML page with everything in it, that loads nothing and runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np

from .. import __version__
from ..transport.durable import write_file
from .charts import Panel, draw_map, draw_panel
from .markup import Html, element, fragment
from .panels import (
    BANDS_MAX,
    client_panels,
    metrics_left_out,
    over_rounds,
    over_time,
    over_virtual_time,
    privacy_panels,
    round_panels,
)
from .participation import Picture
from .run_record import UNDER_WAY, RunRecord, read_run
from .seeds import over_seeds, seed_groups
from .shown_run import ShownRun, show_runs
from .style import PAGE_CSS
from .svg import require_matplotlib
from .tables import runs_table, scores_table, settings_that_differ, shared_settings

__all__ = ["report_page", "write_report"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What a browser may do with the page: nothing but show it."""


SEEDS_NOTE = "Line: mean of the runs that differ in run.seed alone. Area: one standard deviation to either side."


def write_report(folders: Sequence[Path], out: Path) -> int:
    """Read run folders and write their report; returns its size in bytes.

    Guarantees: the page refers to no other file and no network; every text of a run folder is
        escaped; the same folders give the same bytes.
    Raises:
        ConfigError: a folder is no run's, a file in it is damaged, or matplotlib is missing.
        StoreError: `out` cannot be written.
    """
    require_matplotlib()
    content = report_page([read_run(folder) for folder in folders]).encode()
    write_file(out, content)
    return len(content)


def report_page(records: Sequence[RunRecord]) -> Html:
    """Return the report of one run, or of several in comparison."""
    runs = show_runs(records)
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"Meadow: {title}"),
        element("style", PAGE_CSS),
    )
    heading = element("header", element("p", "Meadow report"), element("h1", title))
    body = element(
        "body",
        element("main", heading, *_sections(runs)),
        element("footer", f"Made by Meadow {__version__}."),
    )
    return Html(f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n")


def _sections(runs: Sequence[ShownRun]) -> Iterator[Html]:
    idents = count(1)

    def charts(panels: Iterable[Panel]) -> Html:
        drawn = [draw_panel(panel, ident=f"c{next(idents)}") for panel in panels]
        return element("div", *drawn, class_="charts") if drawn else Html("")

    yield from _troubles(runs)
    yield _section("Runs", runs_table(runs), _settings(runs))
    yield _section("Final round", scores_table(runs, lambda record: record.final))
    yield _section("Best round", scores_table(runs, lambda record: record.best))
    if groups := seed_groups(runs):
        shown = element("div", *(element("p", group.label) for group in groups))
        what = "Metrics by round: mean over seeds"
        yield _section(what, shown, charts(over_seeds(groups)), note=SEEDS_NOTE)
    if len(runs) > 1:
        labels = (element("span", run.label) for run in runs)
        yield element("nav", *labels, class_="legend", aria_label="lines of the charts")
    left_out = metrics_left_out(runs)
    note = f"{left_out} more metrics are not shown." if left_out else ""
    yield _section("Metrics by round", charts(over_rounds(runs)), note=note)
    yield _section("Metrics by time", charts(over_time(runs)))
    yield _section("Metrics by virtual time", charts(over_virtual_time(runs)))
    yield _section("Differences between clients", charts(client_panels(runs)), note=_spread(runs))
    yield _section("Participation", _maps(runs, idents))
    yield _section("Rounds", charts(round_panels(runs)), note=_failures(runs))
    yield _section("Privacy", charts(privacy_panels(runs)))
    shared = shared_settings(runs)
    if shared is not None:
        what = "Settings" if len(runs) == 1 else "Settings that all runs share"
        yield element("details", element("summary", what), shared)


def _section(title: str, *content: Html, note: str = "") -> Html:
    """Return a section, nothing if it has no content."""
    if not any(content):
        return Html("")
    said = [element("p", note, class_="note")] if note else []
    return element("section", element("h2", title), *said, *content)


def _troubles(runs: Sequence[ShownRun]) -> Iterator[Html]:
    for run in runs:
        status, final = run.record.status, run.record.final
        after = f"after round {final.round}" if final else "before its first round was complete"
        name = element("strong", run.name)
        if status == UNDER_WAY:
            yield element("p", name, f" is under way, or was killed, {after}.", class_="open")
        elif status != "finished":
            cause = f": {run.record.cause}" if run.record.cause else "."
            tone = "bad" if status == "failed" else "open"
            yield element("p", name, f" {status} {after}{cause}", class_=tone)


def _settings(runs: Sequence[ShownRun]) -> Html:
    if len(runs) == 1:
        return Html("")
    differ = settings_that_differ(runs)
    if differ is None:
        return element("p", "All runs have the same settings.", class_="note")
    return fragment([element("h3", "Settings that differ"), differ])


def _spread(runs: Sequence[ShownRun]) -> str:
    band = "Area: from the 10th to the 90th percentile of the clients. "
    return (
        f"{band if len(runs) <= BANDS_MAX else ''}Thick line: their median. "
        "Dotted line: mean of the worst 10 %. Every client counts the same."
    )


def _failures(runs: Sequence[ShownRun]) -> str:
    return "" if any(run.total("failures") for run in runs) else "No client failed."


def _maps(runs: Sequence[ShownRun], idents: Iterator[int]) -> Html:
    drawn = []
    for run in runs:
        picture = run.record.clients.picture
        if picture is not None:
            chart = draw_map(picture, ident=f"c{next(idents)}")
            name = [element("h3", run.label)] if len(runs) > 1 else []
            note = element("p", _caption(picture), class_="note")
            drawn.append(element("div", *name, chart, note))
    return element("div", *drawn, class_="maps") if drawn else Html("")


def _caption(picture: Picture) -> str:
    known, counts = len(picture.ids), picture.counts
    who = f"{known} clients took part"
    if picture.sample > 1:
        who = f"A sample of {known} clients, 1 in {picture.sample}"
    cell = ""
    if picture.clients_a_bin > 1 or picture.rounds_a_bin > 1:
        cell = (
            f" A cell is {picture.clients_a_bin} clients by {picture.rounds_a_bin} rounds, and its "
            "colour the share of these in which they took part."
        )
    fewest, middle, most = counts.min(), np.median(counts), counts.max()
    return f"{who}: in {fewest} to {most} rounds, {middle:g} at the median.{cell}"
