"""What [selection] does not go with."""

from __future__ import annotations

from ..sections.run import RunConfig
from ..sections.selection import SelectionConfig
from ..sections.simulation import SimulationConfig

__all__ = ["clients_for_separation", "selection_rules"]

SEPARATION = "selection.min_separation"
TIMES = "selection.participations_max"


def clients_for_separation(chosen: SelectionConfig, run: RunConfig) -> int:
    """Return how many clients it takes that each of them waits, or takes part, as is said."""
    drawn = run.cohort if isinstance(run.cohort, int) else 1
    needed = drawn * min(chosen.min_separation, run.rounds)
    if chosen.participations_max is not None:
        needed = max(needed, -(-drawn * run.rounds // chosen.participations_max))
    return needed


def selection_rules(
    chosen: SelectionConfig, run: RunConfig, simulation: SimulationConfig
) -> list[tuple[bool, tuple[str, ...], str]]:
    """Return what is wrong with clients that take part by turns: whether, which keys, and why."""
    turns = chosen.min_separation > 1 or chosen.participations_max is not None
    needed, keys = clients_for_separation(chosen, run), (SEPARATION, TIMES)
    return [
        (
            turns and not isinstance(run.cohort, int),
            ("run.cohort", *keys),
            (
                f"= {run.cohort} is a part of the clients, and those that took part lately are not "
                f"drawn; with {SEPARATION} or {TIMES} write a whole number of clients"
            ),
        ),
        (
            turns and simulation.devices is not None,
            ("simulation.devices", *keys),
            f"come and go, and would have to wait beside; remove it, or {SEPARATION} and {TIMES}",
        ),
        (
            needed > simulation.clients,
            ("simulation.clients", *keys),
            (
                f"= {simulation.clients} must be at least {needed} for {run.rounds} rounds of "
                f"{run.cohort} clients that take part by turns; raise it, or lower run.cohort or "
                f"{SEPARATION}, or raise {TIMES}"
            ),
        ),
    ]
