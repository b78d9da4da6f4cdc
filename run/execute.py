"""Executes a run's server side on any grid and leaves its run folder.

The run worker calls it with a `FleetGrid`, the simulation with a `SimulationGrid`. Both leave the
same folder, for Meadow's apps and for plain Flower apps.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from flwr.serverapp import Grid

from ..apps.folder import App
from ..config.app_options import OPTIONS_KEY, options_to_text
from ..config.load import config_to_toml
from ..config.own_algorithm import with_algorithm_named
from ..config.schema.text import value_to_toml
from ..errors import MeadowError, RunStoppedError
from ..strategies.rounds.run_state import Room, has_room
from ..tracking.follower import trackers_of
from .app import open_ledger, run_rounds
from .app_output import kept_output
from .first_params import first_params
from .flower_run import run_flower_app
from .population_ledger import RunShare
from .run_folder import TRACEBACKS, RunFolder

__all__ = ["OnEvent", "execute", "rounds_of", "run_config_of"]

OnEvent = Callable[[str, Mapping[str, Any]], None]


def rounds_of(app: App) -> int:
    """Return how many rounds an app runs, 0 if only its own code determines that."""
    if app.config is not None:
        return app.config.run.rounds
    rounds = app.flower.run_config.get("num-server-rounds", 0) if app.flower else 0
    return rounds if isinstance(rounds, int) else 0


def run_config_of(app: App) -> dict[str, bool | int | float | str]:
    """Return the run config of the server's and the clients' Contexts."""
    if app.flower is not None:
        return dict(app.flower.run_config)
    assert app.config is not None
    simulation, options = app.config.simulation, app.config.app.options
    entries = {OPTIONS_KEY: options_to_text(options, str(app.config.source))} if options else {}
    return {
        **entries,
        "partition": simulation.partition,
        "partition-alpha": simulation.alpha,
        "partition-classes-per-client": simulation.classes_per_client,
        "partition-min-samples": simulation.min_samples,
        "partition-noise-variance": simulation.noise_variance,
        "partition-seed": app.config.run.seed,
    }


def execute(
    app: App,
    grid: Grid,
    folder: RunFolder,
    *,
    run_id: int,
    share: RunShare | None = None,
    room: Room = has_room,
) -> dict[str, Any]:
    """Run an app's server side to its end; return the content of summary.json.

    `share` is the run's part of the server's privacy ledger. `room` is asked before a round of Meadow's own whether
    the disk has room for it.

    A run that fails or is stopped also leaves a summary, with that status; it can be resumed from
    its last committed round.
    """
    begun_s = time.monotonic()
    status, cause, result, ledger = "finished", "", None, None
    try:
        with kept_output(folder.folder, anew=app.flower is not None):
            if app.config is not None:
                folder.follow(trackers_of(app.config.tracking, folder.folder))
                file = folder.folder / "privacy.sqlite"
                ledger = open_ledger(app.config, file, sync=folder.durable, share=share)
                if ledger is not None and ledger.plan.epsilon_max is not None:
                    budget = {"epsilon_max": ledger.plan.epsilon_max, "delta": ledger.plan.delta}
                    folder.event("privacy_budget", budget)
                task = app.load_task()
                large, seed = folder.checkpoints, app.config.run.seed
                result = run_rounds(
                    task,
                    app.config,
                    grid,
                    recorder=folder,
                    privacy=ledger,
                    initial=(lambda: first_params(app, task, seed, large.first))
                    if folder.durable
                    else None,
                    store=large.store if folder.durable else None,
                    room=room,
                )
                status, cause = result.status, result.cause
            else:
                if share is not None:
                    share.ask(None, ())
                run_flower_app(app, grid, folder, run_id=run_id, run_config=run_config_of(app))
    except (RunStoppedError, KeyboardInterrupt) as stop:
        status, cause = "stopped", str(stop) or "interrupted"
    except MeadowError as error:
        status, cause = "failed", str(error)
    except Exception as error:  # the app's own code may raise anything
        folder.traceback("".join(traceback.format_exception(error)))
        status, cause = "failed", f"the app raised {app.explain(error)}"
        folder.event("app_raised", {"reason": app.explain(error), "log": TRACEBACKS})
    if ledger is not None:
        ledger.settle()
    return folder.finish(
        status=status,
        cause=cause,
        result=result,
        duration_s=time.monotonic() - begun_s,
        privacy=ledger.summary() if ledger is not None else None,
    )


def resolved_toml(app: App) -> str:
    """Return the text of the run folder's meadow.toml: the resolved configuration."""
    if app.config is not None:
        return config_to_toml(with_algorithm_named(app.config))
    lines = [f"# the Flower app {app.name}: its run config", "[flower]"]
    lines += [f'"{key}" = {value_to_toml(value)}' for key, value in run_config_of(app).items()]
    return "\n".join(lines) + "\n"
