"""A model of several kinds of tensors, and a client that moves it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def params() -> dict[str, np.ndarray[Any, Any]]:
    """Params of four dtypes, a counter, a scalar and a tensor without values among them."""
    generator = np.random.default_rng(0)
    return {
        "matrix": generator.standard_normal((40, 30)).astype(np.float32),
        "half": generator.standard_normal(50).astype(np.float16),
        "seen": np.int64(12),
        "wide": generator.standard_normal((3, 7)),
        "turn": (generator.standard_normal(4) + 1j).astype(np.complex64),
        "scale": np.float32(1.5),
        "empty": np.zeros((0, 3), np.float32),
    }
