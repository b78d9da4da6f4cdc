"""`meadow report`: runs as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from ..reports.page import write_report
from ..reports.sentences import amount
from .output import Format, FormatOption, say

__all__ = ["report"]

SWEEP = "sweep.json"
PAGE = "report.html"


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="run folders, or a sweep's folder")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="the page; default: report.html in the folder, or here for several"),
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Show runs, finished or under way, in one HTML page: curves, clients, traffic, settings."""
    runs = [run for folder in folders for run in _runs_of(folder)]
    target = out or (folders[0] / PAGE if len(folders) == 1 else Path(PAGE))
    if target.is_dir():
        raise ConfigError(f"--out {target} is a folder; give a file, as {target / PAGE}")
    size_bytes = write_report(runs, target)
    text = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} in {target} ({amount(size_bytes)})"
    fields = {"runs": [str(run) for run in runs], "size_bytes": size_bytes}
    say(format, text, event="report", out=str(target), **fields)


def _runs_of(folder: Path) -> list[Path]:
    """Return the runs of a sweep that have completed a round, or the folder itself."""
    if not (folder / SWEEP).is_file():
        return [folder]
    runs = sorted(path.parent for path in folder.glob("*/metrics.jsonl"))
    if not runs:
        raise ConfigError(f"{folder}: no run of the sweep has completed a round; try again later")
    return runs
