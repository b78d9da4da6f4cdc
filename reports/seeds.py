"""Runs that differ in their seed alone, as one curve: the mean, and how far the runs are apart."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .charts import COLOURS, DASHES, Band, Line, Panel
from .columns import Values
from .markup import Html
from .panels import metrics_of
from .shown_run import ShownRun, label_of

__all__ = ["SeedGroup", "over_seeds", "seed_groups"]

SEED = "run.seed"
NAME_LENGTH_MAX = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedGroup:
    """Runs whose settings are the same but for their seed."""

    runs: Sequence[ShownRun]
    name: str
    colour: str
    dash: str

    @property
    def label(self) -> Html:
        """The name beside a piece of the group's line."""
        return label_of(self.name, self.colour, self.dash)


def seed_groups(runs: Sequence[ShownRun]) -> list[SeedGroup]:
    """Return the runs in groups; none if no two runs differ in their seed alone."""
    found: dict[tuple[tuple[str, str], ...], list[ShownRun]] = {}
    for run in runs:
        settings = run.record.settings
        key = tuple(sorted(each for each in settings.items() if each[0] != SEED))
        found.setdefault(key, []).append(run)
    if not any(len(members) > 1 and _seeds(members) == len(members) for members in found.values()):
        return []
    shared = set.intersection(*(set(key) for key in found))
    return [
        SeedGroup(
            runs=members,
            name=_name(
                [f"{name} = {value}" for name, value in key if (name, value) not in shared], members
            ),
            colour=COLOURS[place % len(COLOURS)],
            dash=DASHES[place // len(COLOURS)],
        )
        for place, (key, members) in enumerate(found.items())
    ]


def _seeds(runs: Sequence[ShownRun]) -> int:
    return len({run.record.settings.get(SEED) for run in runs})


def _name(differs: Sequence[str], runs: Sequence[ShownRun]) -> str:
    count = f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"
    text = ", ".join([*differs, count])
    return text if len(text) <= NAME_LENGTH_MAX else f"{text[:NAME_LENGTH_MAX]}…"


def over_seeds(groups: Sequence[SeedGroup]) -> Iterator[Panel]:
    """Yield every metric over rounds: each group's mean, within one standard deviation.

    Edge cases: a round that only some runs have is the mean of those; the deviation is that of a
        sample (n - 1), and a round of one run has no area.
    """
    for metric in metrics_of([run for group in groups for run in group.runs]):
        part, _, name = metric.partition(".")
        lines, bands = [], []
        for group in groups:
            rounds, values = _table(group.runs, metric)
            mean, deviation = _moments(values)
            lines.append(Line(x=rounds, y=mean, colour=group.colour, dash=group.dash))
            bands.append(
                Band(x=rounds, low=mean - deviation, high=mean + deviation, colour=group.colour)
            )
        yield Panel(title=f"{part} {name}", x_label="round", lines=lines, bands=bands)


def _table(runs: Sequence[ShownRun], metric: str) -> tuple[Values, Values]:
    """Return the rounds of all runs, and a metric by run and round, NaN where it is not known.

    Shapes: (rounds,), (runs, rounds).
    """
    columns = [(run.record.columns.rounds, run.record.columns.column(metric)) for run in runs]
    rounds = np.unique(np.concatenate([own for own, _ in columns]))
    values = np.full((len(runs), len(rounds)), np.nan)
    for place, (own, column) in enumerate(columns):
        values[place, np.searchsorted(rounds, own)] = column
    known = np.isfinite(values).any(axis=0)
    return rounds[known], values[:, known]


def _moments(values: Values) -> tuple[Values, Values]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a single run there is no deviation
        values = np.where(np.isfinite(values), values, np.nan)
        return np.nanmean(values, axis=0), np.nanstd(values, axis=0, ddof=1)
