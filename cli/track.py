"""`meadow track`: finished runs, copied to experiment trackers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..config.load import load_config
from ..errors import ConfigError
from ..tracking.follower import copy_run
from .output import Format, FormatOption, say

__all__ = ["track"]


def track(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="run folders")],
    mlflow: Annotated[
        str | None, typer.Option(help="an MLflow store, as sqlite:///mlflow.db")
    ] = None,
    wandb: Annotated[str | None, typer.Option(help="Weights & Biases: offline or online")] = None,
    experiment: Annotated[
        str | None, typer.Option(help="the MLflow experiment, and the W&B project")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Copy runs that have ended to MLflow or Weights & Biases: settings, rounds, model, report.

    Without --mlflow and --wandb, to the trackers of the run's [tracking]. What a tracker already
    has is not copied again.
    """
    given = {"mlflow": mlflow, "wandb": wandb, "experiment": experiment}
    overrides = [f"tracking.{key}={text}" for key, text in given.items() if text is not None]
    for folder in folders:
        config = load_config(folder, environ={}, overrides=overrides).tracking
        if config is None:
            raise ConfigError(
                f"{folder}: its meadow.toml has no [tracking]; give --mlflow sqlite:///mlflow.db, "
                "--wandb offline or both"
            )
        names = [tracker.name for tracker in copy_run(folder, config)]
        text = f"{folder} is copied to {' and '.join(names)}, experiment {config.experiment}"
        say(format, text, event="tracked", folder=str(folder), trackers=names)
