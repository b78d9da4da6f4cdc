"""Output of commands: tables and sentences for people, JSON for programs, and errors."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..deprecated import RenamedWarning

__all__ = [
    "Format",
    "FormatOption",
    "fail",
    "plain",
    "say",
    "show_renamings",
    "show_rows",
]


class Format(StrEnum):
    """What a command prints."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[
    Format, typer.Option("--format", help="text for people, json for programs")
]


def say(format: Format, text: str, **fields: Any) -> None:
    """Print a sentence, or its fields as one JSON object on a line."""
    line = json.dumps(fields, default=str) if format is Format.JSON else plain(text)
    print(line, flush=True)


def show_rows(
    format: Format, rows: Sequence[Mapping[str, Any]], *, columns: Mapping[str, str], empty: str
) -> None:
    """Print rows as a table with these columns (key -> heading), or as a JSON list."""
    if format is Format.JSON:
        print(json.dumps(list(rows), default=str), flush=True)
        return
    if not rows:
        print(empty, flush=True)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns.values():
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(str(row.get(key, "")))) for key in columns))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def fail(error: Exception, *, format: Format = Format.TEXT) -> None:
    """Print an error as one line on stderr."""
    if format is Format.JSON:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}), flush=True)
    print(plain(f"meadow: {error}"), file=sys.stderr, flush=True)


def show_renamings() -> None:
    """Have old names of settings shown as a sentence each; they are warnings that Python hides."""
    formatted = warnings.formatwarning

    def sentence(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
        if issubclass(category, RenamedWarning):
            return f"warning: {plain(str(message))}\n"
        return formatted(message, category, *place, **more)

    warnings.formatwarning = sentence
    warnings.simplefilter("default", RenamedWarning)


def plain(text: str) -> str:
    """Return text without terminal control characters, as a peer may have sent it."""
    return "".join(mark if mark.isprintable() or mark == "\n" else "?" for mark in text)
