"""Linear layers under momentum, weight decay and a proximal term: every way in which they are kept."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import MessageType

from meadow.simulations.executors.vectorized import executor as vectorized
from meadow.simulations.executors.vectorized import linear_training
from meadow.simulations.executors.vectorized.first_layers import FirstOnce, FirstRepeated

from ..test_agreement import (
    assert_alike,
    assert_is_mean,
    executors,
    order_of,
    task_of,
    train,
)

DESCENTS = {
    "momentum": {"momentum": 0.9},
    "decay": {"weight-decay": 0.2},
    "proximal": {"proximal-mu": 0.5},
    "all": {"momentum": 0.9, "weight-decay": 0.2, "proximal-mu": 0.5},
}
WAYS = {"layers": (None, 2), "first once": (FirstOnce, 1), "first repeated": (FirstRepeated, 2)}


@pytest.mark.parametrize("descent", DESCENTS.values(), ids=DESCENTS)
@pytest.mark.parametrize("way", WAYS)
def test_a_client_trains_as_it_does_alone(
    way: str, descent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one and in their mean, with unequal numbers of samples."""
    kind, epochs = WAYS[way]
    monkeypatch.setattr(linear_training, "_kind_of", lambda *_: kind)
    monkeypatch.setattr(vectorized, "train_stacked", None)  # nothing is mapped
    task = task_of("mlp")
    settings = {"learning-rate": 0.05, "epochs": epochs, **descent}
    order = order_of(task, MessageType.TRAIN, settings)
    sequential, single = executors(task, combine=False)
    _, together = executors(task, combine=True)
    expected, found = train(sequential, order), train(single, order)
    for client, reply in expected.items():
        assert_alike(found[client], reply)
    (mean,) = train(together, order).values()
    assert_is_mean(mean, expected)
