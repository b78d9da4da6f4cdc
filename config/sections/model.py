"""`Config`: everything that meadow.toml says, one attribute a section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .compression import CompressionConfig
from .privacy import PrivacyConfig
from .robust import RobustConfig
from .rounds import RoundsConfig
from .run import AppConfig, EvaluationConfig, RunConfig
from .selection import SelectionConfig
from .simulation import SimulationConfig
from .strategy import StrategyConfig
from .tracking import TrackingConfig
from .training import TrainingConfig

__all__ = ["Config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that meadow.toml says; make one with `load_config` or `make_config`."""

    app: AppConfig = field(default_factory=AppConfig)
    run: RunConfig = field(default_factory=RunConfig)
    rounds: RoundsConfig = field(default_factory=RoundsConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    robust: RobustConfig | None = None
    compression: CompressionConfig | None = None
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    tracking: TrackingConfig | None = None
    source: Path | None = field(default=None, compare=False)
    """The file it was read from."""
    algorithm: Any = field(default=None, compare=False)
    """An `Algorithm` that was made in Python, in the place of the one that [strategy] names."""
    functions: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The app's own functions, by the settings that name them; see `own_functions.py`."""
