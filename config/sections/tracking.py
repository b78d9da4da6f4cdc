"""[tracking]: the run's rounds, copied to experiment trackers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from ..schema.rules import Rule
from ..schema.settings import setting

__all__ = ["OFF", "TrackingConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingConfig:
    """[tracking]: naming this table at all turns it on."""

    mlflow: str | None = setting(
        None,
        "the tracking URI of an MLflow store: sqlite:///mlflow.db, with a path from the folder in "
        "which the process runs, or the address of a tracking server; passwords and tokens belong "
        "in MLflow's environment variables",
    )
    wandb: Literal["off", "offline", "online"] = setting(
        "off",
        "Weights & Biases: offline, in wandb/ of the run folder, which `wandb sync` uploads later, "
        "online, with the key in WANDB_API_KEY; or not at all",
    )
    experiment: str = setting("meadow", "the name of MLflow's experiment, and of the W&B project")

    rules: ClassVar[tuple[Rule[TrackingConfig], ...]] = (
        Rule(
            ("mlflow", "wandb"),
            "at least one of them",
            lambda tracking: not tracking.mlflow and tracking.wandb == OFF,
            'needs mlflow = "sqlite:///mlflow.db", wandb = "offline" or both',
        ),
        Rule(
            ("mlflow",),
            "without a password",
            lambda tracking: _has_password(tracking.mlflow),
            "has a password, which would be copied to the run folder: set it in "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        ),
        Rule(
            ("experiment",),
            "1 to 100 characters",
            lambda tracking: not 1 <= len(tracking.experiment) <= NAME_CHARS_MAX,
            "must be a text of 1 to 100 characters, got {experiment!r}",
        ),
    )


NAME_CHARS_MAX = 100
OFF = "off"


def _has_password(uri: str | None) -> bool:
    try:
        return uri is not None and urlsplit(uri).password is not None
    except ValueError:  # no address at all: MLflow says so
        return False
