"""How a benchmark tells its outcome: a table for people, and one line of JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

__all__ = ["report"]

FILE_COLUMNS = 240


def report(
    name: str, rows: Sequence[Mapping[str, object]], figures: Mapping[str, float | int]
) -> None:
    """Print `rows` as a table (the first row's keys are its columns), then the JSON line.

    The line is the last of the output: {"name": ..., "figures": {...}}.
    """
    columns = list(rows[0]) if rows else []
    table = Table(title=name, title_justify="left")
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_shown(row.get(column, "")) for column in columns))
    console = Console()
    if not console.is_terminal:
        console.width = FILE_COLUMNS  # of a file, no digits are cut
    console.print(table)
    print(json.dumps({"name": name, "figures": dict(figures)}), flush=True)


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
