"""A run in a report: its name there, its colour, and its numbers as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from .charts import COLOURS, DASHES
from .columns import Values
from .markup import Html, element, fragment
from .run_record import RunRecord

__all__ = [
    "RUNS_MAX",
    "ShownRun",
    "duration",
    "label_of",
    "number",
    "show_runs",
    "size",
    "time_unit",
]

RUNS_MAX = len(COLOURS) * len(DASHES)
NAME_LENGTH_MAX = 80
DASH_LENGTHS = {"solid": "", "dashed": "6 3", "dashdot": "7 2 2 2", "dotted": "2 2"}
SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """A run with the name and the line that distinguish it from others."""

    record: RunRecord
    name: str
    colour: str
    dash: str

    @property
    def label(self) -> Html:
        """The name beside a piece of the run's line."""
        return label_of(self.name, self.colour, self.dash)

    def total(self, name: str) -> float:
        """Return the sum of a column of the run."""
        return self.record.columns.total(name)

    def last(self, name: str) -> float:
        """Return the last known value of a column, NaN if there is none."""
        values = self.record.columns.column(name)
        known = values[~_is_nan(values)]
        return float(known[-1]) if len(known) else math.nan


def label_of(name: str, colour: str, dash: str) -> Html:
    """Return a name beside a piece of its line."""
    stroke = element(
        "line",
        x1="0",
        y1="5",
        x2="26",
        y2="5",
        stroke=colour,
        stroke_width="3",
        stroke_dasharray=DASH_LENGTHS[dash],
    )
    swatch = element("svg", stroke, width="26", height="10", aria_hidden="true")
    return fragment([swatch, Html(" "), name])


def show_runs(records: Sequence[RunRecord]) -> tuple[ShownRun, ...]:
    """Return the runs with names that differ and lines that can be told apart.

    Raises:
        ConfigError: there are more than `RUNS_MAX`.
    """
    if len(records) > RUNS_MAX:
        raise ConfigError(
            f"a report compares at most {RUNS_MAX} runs, got {len(records)}; give fewer"
        )
    names = _names([record.folder for record in records])
    return tuple(
        ShownRun(
            record=record,
            name=name,
            colour=COLOURS[place % len(COLOURS)],
            dash=DASHES[place // len(COLOURS)],
        )
        for place, (record, name) in enumerate(zip(records, names, strict=True))
    )


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the ends of the paths, as long as it takes to tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    depth = 1
    while len({each[-depth:] for each in parts}) < len(set(parts)):
        depth += 1
    names = ["/".join(each[-depth:]) for each in parts]
    return [
        each if len(each) <= NAME_LENGTH_MAX else f"…{each[-NAME_LENGTH_MAX:]}" for each in names
    ]


def _is_nan(values: Values) -> npt.NDArray[np.bool_]:
    return np.isnan(values)


def number(value: float | None) -> str:
    """Return a metric's value as people read it, "-" for none."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 100 or value == 0 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return a time: 4.2 s, 3.5 min, 12.1 h."""
    if not math.isfinite(seconds):
        return "-"
    divisor, unit = time_unit(seconds)
    return f"{seconds / divisor:.1f} {unit}"


def time_unit(seconds_max: float) -> tuple[float, str]:
    """Return what seconds are divided by, and the name of the unit."""
    if seconds_max < 120:
        return 1.0, "s"
    return (60.0, "min") if seconds_max < 7200 else (3600.0, "h")


def size(bytes_max: float) -> tuple[float, str]:
    """Return what bytes are divided by, and the name of the unit."""
    return next((each for each in SIZES if bytes_max >= each[0]), SIZES[-1])
