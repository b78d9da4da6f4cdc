"""What is to be done for each run of a sweep: nothing, begin it, or go on with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..apps.flower_app import read_flower_app
from ..apps.folder import App
from ..config.load import load_config
from ..errors import ConfigError
from ..transport.durable import sweep as remove_leftovers
from .combinations import Combination, Grid

__all__ = [
    "LOCK_NAME",
    "RECORD_NAME",
    "RunProgress",
    "Sweep",
    "command_of",
    "plan_sweep",
    "state_of",
]

ORIGIN, SUMMARY = "origin.json", "summary.json"
RECORD_NAME, LOCK_NAME = "sweep.json", ".lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A checked sweep: every combination is one that the app takes.

    Attributes:
        clients: how many are simulated, for a plain Flower app; None leaves it to the app.
    """

    app: App
    grid: Grid
    out: Path
    clients: int | None = None

    def folder(self, combination: Combination) -> Path:
        """Return a run's folder."""
        return self.out / combination.name


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """The progress of a run, read from its folder; "waiting" before its beginning."""

    status: str
    cause: str = ""
    rounds: int = 0
    duration_s: float = 0.0
    final: Mapping[str, Any] | None = None
    best: Mapping[str, Any] | None = None


def plan_sweep(folder: Path, grid: Grid, *, out: Path, clients: int | None = None) -> Sweep:
    """Check a sweep before anything of it starts.

    Raises:
        AppError, ConfigError: the app cannot be used; it does not take a combination; or `out`
            holds something else, or runs of other settings or of another version of the app.
    """
    app = App.load(folder, overrides=list(grid.overrides(grid.combinations[0])))
    if clients is not None and app.config is not None:
        raise ConfigError("--clients is for plain Flower apps; write --set simulation.clients=N")
    for combination in grid.combinations[1:]:
        overrides = list(grid.overrides(combination))
        if app.config is not None:
            load_config(app.folder, overrides=overrides)
        else:
            read_flower_app(app.folder / "pyproject.toml", overrides=overrides)
    sweep = Sweep(app=app, grid=grid, out=out, clients=clients)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} cannot be the sweep's folder: it is a file; give another --out")
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if names - {LOCK_NAME} and RECORD_NAME not in names:
        raise ConfigError(f"{out} is not empty and not a sweep's folder; give another --out")
    for combination in grid.combinations:
        _check_origin(sweep, combination)
    return sweep


def _check_origin(sweep: Sweep, combination: Combination) -> None:
    folder = sweep.folder(combination)
    origin = _read(folder / ORIGIN)
    if not origin:
        return
    environment = sweep.app.settings[: -len(sweep.grid.overrides(combination)) or None]
    expected = [*environment, *sweep.grid.overrides(combination)]
    if origin.get("sha256") != sweep.app.sha256:
        raise ConfigError(
            f"{folder} is of another version of the app {sweep.app.folder}: undo the change, or "
            "give another --out"
        )
    if origin.get("settings") != expected or sweep.clients not in (None, origin.get("clients")):
        raise ConfigError(
            f"{folder} was run with other settings or another environment; use them again, or "
            "give another --out"
        )


def state_of(folder: Path) -> RunProgress:
    """Return how far a run is, from its folder alone."""
    summary = _read(folder / SUMMARY)
    if not summary:
        begun = (folder / ORIGIN).is_file()
        return RunProgress(status="interrupted" if begun else "waiting")
    return RunProgress(
        status=str(summary.get("status")),
        cause=summary.get("cause") or "",
        rounds=summary.get("rounds") or 0,
        duration_s=summary.get("duration_s") or 0.0,
        final=summary.get("final"),
        best=summary.get("best"),
    )


def command_of(sweep: Sweep, combination: Combination) -> Sequence[str]:
    """Return the command that begins a run, or goes on with it."""
    folder = sweep.folder(combination)
    command = [sys.executable, "-m", "meadow", "simulate", "--format", "json"]
    if (folder / ORIGIN).is_file():
        return [*command, "--resume", str(folder)]
    if folder.is_dir():
        remove_leftovers(folder)  # killed before it could say what it is
    command += [str(sweep.app.folder), "--out", str(folder)]
    if sweep.clients is not None:
        command += ["--clients", str(sweep.clients)]
    for override in sweep.grid.overrides(combination):
        command += ["--set", override]
    return command


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
