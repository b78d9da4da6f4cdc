"""LoRA: only the adapters of a large model are trained, and only they travel.

Source: Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen, "LoRA: low-rank adaptation of large
language models" (2022); averaged over clients as in Zhang, Vahidian, Kuo et al., "Towards building the
federated GPT: federated instruction tuning" (2024), algorithm 1.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from ...errors import ConfigError
from .algorithm import Algorithm, Params, State
from .builders import builder
from .fedavg import fedavg

__all__ = ["BASE", "base_checksum", "lora"]

BASE = "base-checksum"
"""The `client_config` key of the base model's checksum."""


@builder(
    example={"adapters": ["out.*"]},
    client="trains the adapters on a base model of its own",
    privacy=("client",),
    together=False,
)
def lora(*, adapters: Sequence[str] = ("*lora_*", "*modules_to_save*")) -> Algorithm:
    """Average the adapters, weighted by their examples; the base model stays where it is.

    `adapters` are patterns of the names of tensors, by default those of the peft package: the
    tensors that learn, all of them. Server and clients build the base model themselves, each from
    weights of its own; a client whose base has another checksum refuses to train.

    Guarantees: no other tensor is in an instruction, in a reply, in a checkpoint or in the model
        that a run leaves.
    Raises:
        ConfigError: there are no patterns; at the start, they match nothing.
    """
    patterns = tuple(adapters)
    if not patterns:
        raise ConfigError('adapters must name the tensors that travel, as ["*lora_*"], got none')

    def matches(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    def init(params: Params) -> State:
        chosen = {name: values for name, values in params.items() if matches(name)}
        if not chosen:
            raise ConfigError(
                f"adapters = {list(patterns)} matches no tensor; the model has "
                f"{', '.join(list(params)[:8])}"
            )
        return State(params=chosen)

    return replace(
        fedavg(),
        name="lora",
        init=init,
        client="meadow.training.algorithms.adapters:TrainAdapters",
        client_config={"algorithm": "lora"},
        evaluate_config={"algorithm": "lora"},
        params_config=lambda params: {BASE: base_checksum(params, matches)},
    )


def base_checksum(params: Params, is_adapter: Callable[[str], bool]) -> int:
    """Return the CRC-32 of the names and values of all tensors but the adapters, in their order."""
    checksum = 0
    for name, values in params.items():
        if not is_adapter(name):
            row = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
            checksum = zlib.crc32(row, zlib.crc32(name.encode(), checksum))
    return checksum
