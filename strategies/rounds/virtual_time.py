"""Optional methods of a grid with a virtual clock.

draw_cohort(...)      draws among the clients that are there at its time, waiting for enough
now_s: float          seconds since the run began, on its clock
begin_at(now_s)       sets the time at which an interrupted run goes on
late: Sequence[int]   who was too late for the last step
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from flwr.serverapp import Grid

from ..algorithms.client_memory import ClientMemory
from .cohort import draw_cohort, size_of_cohort
from .plan import RoundPlan
from .recorder import Row
from .selection import select_cohort

__all__ = [
    "begin_after",
    "begin_at",
    "draw_on",
    "draw_some",
    "late_on",
    "now_s_of",
    "virtual_time_of",
]

KEY = "virtual_s"
"""In a round's row: when it was over, on the grid's clock."""


def draw_on(
    grid: Grid, present: Sequence[int], plan: RoundPlan, memory: ClientMemory, round_number: int
) -> list[int]:
    """Draw a round's cohort among the available clients, as the grid knows them."""
    selection = plan.selection
    if selection.kind == "uniform":
        return _drawn(grid, present, plan, plan.cohort, round_number)
    there = _drawn(grid, present, plan, 1.0, round_number)
    size = size_of_cohort(len(there), cohort=plan.cohort, at_least=plan.min_clients)
    return select_cohort(there, size, memory, selection, seed=plan.seed, round_number=round_number)


def _drawn(
    grid: Grid, present: Sequence[int], plan: RoundPlan, cohort: float, round_number: int
) -> list[int]:
    draw = getattr(grid, "draw_cohort", None)
    draw = draw if callable(draw) else partial(draw_cohort, present)
    return list(
        draw(cohort=cohort, at_least=plan.min_clients, seed=plan.seed, round_number=round_number)
    )


def draw_some(
    grid: Grid, present: Sequence[int], size: int, *, wait: bool, seed: int, turn: int
) -> list[int]:
    """Draw so many of those who are there, or all; in virtual time, wait for one if asked to."""
    draw = getattr(grid, "draw_cohort", None)
    draw = draw if callable(draw) else partial(draw_cohort, present)
    return list(draw(cohort=size, at_least=int(wait), seed=seed, round_number=turn))


def virtual_time_of(grid: Grid) -> dict[str, float]:
    """Return a row's entries on the grid's clock, none if it has no clock."""
    now_s = getattr(grid, "now_s", None)
    return {} if now_s is None else {KEY: float(now_s)}


def begin_after(grid: Grid, history: Sequence[Row]) -> None:
    """Let the grid's clock go on where the last of these rounds ended."""
    begin_at(grid, float(history[-1].get(KEY, 0.0)) if history else 0.0)


def begin_at(grid: Grid, now_s: float) -> None:
    """Set the grid's clock, if it has one."""
    begin = getattr(grid, "begin_at", None)
    if callable(begin):
        begin(now_s)


def now_s_of(grid: Grid) -> float:
    """Return the time on the grid's clock, 0 if it has none."""
    return float(getattr(grid, "now_s", 0.0))


def late_on(grid: Grid) -> list[int]:
    """Return who was too late for the last step."""
    return list(getattr(grid, "late", ()))
