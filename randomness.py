"""Random numbers that depend on a seed alone: torch's, NumPy's and Python's global generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["seeded"]


@contextmanager
def seeded(seed: int, device: str = "cpu") -> Iterator[None]:
    """Seed every global generator for the block, and leave them as they were.

    What runs inside neither sees what ran before it nor leaves a trace: so it gives the same
    numbers in a simulation, between other clients, as in a process of its own.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    gpus = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed looks at every device
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
