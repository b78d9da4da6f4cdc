"""`sweep`: a simulation for every combination of some settings, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, RunError
from ..simulations.run import default_folder
from ..task import Task
from .run import Comparison, Run
from .simulate import simulate

__all__ = ["COMBINATIONS_MAX", "sweep"]

COMBINATIONS_MAX = 1_000


def sweep(
    app: Task | Path | str,
    grid: Mapping[str, Sequence[Any]],
    *,
    out: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Comparison:
    """Simulate every combination of `grid`, as {"training.learning_rate": [0.01, 0.1]}.

    Other arguments are those of `simulate` and hold for all runs. The run folders are below
    `out`, numbered in the order of the combinations; the last key of the grid changes fastest.
    A combination that fails is left out of the comparison; the others go on.

    `meadow sweep` does the same for an app folder on several processes, and can be resumed.

    Raises:
        ConfigError: the grid is empty, has more than `COMBINATIONS_MAX` combinations, or a
            setting is wrong.
        RunError: every run failed.
    """
    axes = {key: list(values) for key, values in grid.items()}
    if not axes or not all(axes.values()):
        raise ConfigError('sweep() needs a grid as {"training.learning_rate": [0.01, 0.1]}')
    combinations = [
        dict(zip(axes, each, strict=True)) for each in itertools.product(*axes.values())
    ]
    if len(combinations) > COMBINATIONS_MAX:
        raise ConfigError(
            f"sweep() has {len(combinations)} combinations, more than {COMBINATIONS_MAX}; "
            "give fewer values"
        )
    folder = Path(out) if out is not None else default_folder("sweep")
    runs: list[Run] = []
    causes: list[str] = []
    for number, combination in enumerate(combinations, 1):
        target = folder / f"{number:03d}"
        try:
            runs.append(
                simulate(app, out=target, settings={**(settings or {}), **combination}, **arguments)
            )
        except RunError as error:
            causes.append(f"{target}: {error}")
        if runs and runs[-1].status == "stopped":
            break
    if not runs:
        raise RunError(f"every run of the sweep failed; the first one: {causes[0]}")
    return Comparison(runs)
