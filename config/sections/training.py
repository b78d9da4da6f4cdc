"""[training]: what a client does in a round."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ...strategies.algorithms.builders import REFERENCE
from ..schema.installed import SCHEDULES
from ..schema.settings import setting

__all__ = ["TORCH_OPTIMIZER", "TrainingConfig"]

TORCH_OPTIMIZER = re.compile(r"torch\.optim:[A-Z][A-Za-z0-9]*")
"""What names an optimizer of torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """[training]: what a client does in a round."""

    epochs: int = setting(1, "passes over the client's data", at_least=1, at_most=10**6)
    batch_size: int = setting(32, "examples a step", at_least=1, at_most=10**9)
    optimizer: str = setting(
        "sgd",
        "the local optimizer, fresh every round; one of torch by its class, with its own defaults for "
        "all but `learning_rate` and `weight_decay`",
        choices=("sgd", "adam", "adamw"),
        or_like=("torch.optim:NAdam", TORCH_OPTIMIZER),
    )
    learning_rate: float = setting(0.01, "its step", above=0)
    momentum: float = setting(
        0.0, "its momentum", at_least=0, below=1, only={"optimizer": ("sgd",)}
    )
    weight_decay: float = setting(0.0, "the L2 penalty; decoupled for adamw", at_least=0)
    beta_1: float = setting(
        0.9,
        "decay of the first moment",
        at_least=0,
        below=1,
        only={"optimizer": ("adam", "adamw")},
    )
    beta_2: float = setting(
        0.999,
        "decay of the second moment",
        at_least=0,
        below=1,
        only={"optimizer": ("adam", "adamw")},
    )
    epsilon: float = setting(
        1e-8,
        "what is added to the root of the second moment",
        above=0,
        only={"optimizer": ("adam", "adamw")},
    )
    schedule: str = setting(
        "constant",
        'how the learning rate changes from round to round; "module:function", or a name that an '
        "installed package registers, is one of your own: docs/own-algorithms.md",
        choices=("constant", "cosine", "step"),
        or_like=("module:function", REFERENCE),
        installed=SCHEDULES,
    )
    warmup_rounds: int = setting(
        0, "the learning rate rises linearly over these first rounds", at_least=0, at_most=10**6
    )
    step_rounds: int = setting(
        10,
        "rounds between two steps down",
        at_least=1,
        at_most=10**6,
        only={"schedule": ("step",)},
    )
    decay: float = setting(
        0.1,
        "what the learning rate is multiplied by at each step",
        above=0,
        at_most=1,
        only={"schedule": ("step",)},
    )
    gradient_clip_norm: float = setting(
        0.0, "the largest L2 norm of a step's gradient; 0 is no limit", at_least=0
    )
    accumulation_steps: int = setting(
        1, "batches whose gradients make one step", at_least=1, at_most=10**6
    )
    precision: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32",
        "what the forward pass computes in",
    )
