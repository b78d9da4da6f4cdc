"""How a client trains: the settings that a train instruction carries, read and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from ..config.sections.training import TORCH_OPTIMIZER
from ..errors import ProtocolError
from ..randomness.seeds import derive
from ..strategies.algorithms.builders import BUILT_IN, REFERENCE

__all__ = ["TrainingSettings"]

OPTIMIZERS = ("sgd", "adam", "adamw", "lion")
Schedule = Literal["constant", "cosine", "step"]
Precision = Literal["fp32", "bf16", "fp16"]
LOCAL_ALGORITHMS = frozenset(("plain", *BUILT_IN))

WHOLE_MAX = 1_000_000_000
NUMBER_MAX = 1e12
"""What no setting exceeds: wide enough for any use, and nothing overflows within it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The keys of a train instruction's ConfigRecord, in kebab-case there; see [training]."""

    epochs: int = 1
    batch_size: int = 32
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    schedule: Schedule = "constant"
    schedule_rounds: int = 1
    warmup_rounds: int = 0
    step_rounds: int = 10
    decay: float = 0.1
    gradient_clip_norm: float = 0.0
    accumulation_steps: int = 1
    precision: Precision = "fp32"
    seed: int = 0
    server_round: int = 1
    repeat: int = 0
    """How often the client has trained from the same params before, in asynchronous rounds."""
    proximal_mu: float = 0.0
    algorithm: str = "plain"
    """The client's half: one of Meadow's, or as "module:builder" that of the app's own algorithm."""
    algorithm_arguments: str = "{}"
    """The builder's arguments, as JSON, of an algorithm of the app's own."""
    dynamic_alpha: float = 0.01
    fairness_q: float = 0.0
    mixture_learning_rate: float = 0.0
    ditto_lambda: float = 0.0
    head_epochs: int = 1
    tuning_epochs: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> TrainingSettings:
        """Read the settings from a ConfigRecord; keys of other readers are ignored.

        Raises:
            ProtocolError: a value is of another type, or outside its range.
        """
        given = [
            (key, type(value), value if type(value) in _HASHABLE else repr(value))
            for key, value in record.items()
            if key in _KEYS
        ]
        return _read(tuple(given))

    def _check(self) -> None:
        for name in ("epochs", "batch_size", "schedule_rounds", "step_rounds", "server_round",
                     "accumulation_steps", "head_epochs"):  # fmt: skip
            if not 1 <= getattr(self, name) <= WHOLE_MAX:
                raise ProtocolError(
                    f"{name} must be in [1, {WHOLE_MAX}], got {getattr(self, name)}"
                )
        for name in ("learning_rate", "momentum", "weight_decay", "gradient_clip_norm",
                     "proximal_mu", "epsilon", "dynamic_alpha", "fairness_q",
                     "mixture_learning_rate", "ditto_lambda", "tuning_epochs", "repeat",
                     "warmup_rounds"):  # fmt: skip
            if not 0 <= getattr(self, name) <= NUMBER_MAX:  # NaN is refused here too
                raise ProtocolError(
                    f"{name} must be in [0, {NUMBER_MAX:g}], got {getattr(self, name)}"
                )
        for name in ("beta_1", "beta_2", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ProtocolError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if self.optimizer not in OPTIMIZERS and not TORCH_OPTIMIZER.fullmatch(self.optimizer):
            raise ProtocolError(
                f"optimizer must be one of {OPTIMIZERS} or as torch.optim:NAdam, got "
                f"{self.optimizer!r:.80}"
            )
        for name, kind in (("schedule", Schedule),
                           ("precision", Precision)):  # fmt: skip
            if getattr(self, name) not in get_args(kind):
                raise ProtocolError(f"{name} must be one of {get_args(kind)}")
        if self.algorithm not in LOCAL_ALGORITHMS and not REFERENCE.fullmatch(self.algorithm):
            raise ProtocolError(
                f"algorithm must be one of {sorted(LOCAL_ALGORITHMS)} or as module:builder, got "
                f"{self.algorithm!r:.80}"
            )

    @property
    def is_torchs(self) -> bool:
        """Whether the optimizer is one of torch's classes."""
        return self.optimizer not in OPTIMIZERS

    @property
    def stream(self) -> int:
        """What a client's random numbers in a round derive from."""
        return derive(self.seed, "repeat", self.repeat) if self.repeat else self.seed

    def learning_rate_now(self) -> float:
        """Return this round's learning rate: warm-up first, then the schedule."""
        number = self.server_round - 1
        if number < self.warmup_rounds:
            return self.learning_rate * (number + 1) / (self.warmup_rounds + 1)
        if self.schedule == "step":
            return self.learning_rate * self.decay ** (number // self.step_rounds)
        if self.schedule == "cosine":
            span = max(1, self.schedule_rounds - self.warmup_rounds)
            done = min(1.0, (number - self.warmup_rounds) / span)
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate


_DEFAULTS = TrainingSettings()
_KEYS = {
    name.replace("_", "-"): (name, type(getattr(_DEFAULTS, name)))
    for name in TrainingSettings.__dataclass_fields__
}
"""The record's keys: the field of each, and its type."""
_HASHABLE = frozenset((bool, int, float, str, bytes))


@lru_cache(maxsize=8)
def _read(items: tuple[tuple[str, type, Any], ...]) -> TrainingSettings:
    """Read settings; all clients of a simulation are sent the same ones."""
    values: dict[str, Any] = {}
    for key, given, value in items:
        name, kind = _KEYS[key]
        if kind is float and given is int:
            value = float(value)
        elif given is not kind:
            raise ProtocolError(f"{key} must be of type {kind.__name__}, got {value!r:.80}")
        values[name] = value
    settings = TrainingSettings(**values)
    settings._check()
    return settings
