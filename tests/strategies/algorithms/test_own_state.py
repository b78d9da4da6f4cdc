"""The state of an algorithm of one's own: its form stays, so that checkpoints can be continued."""

from __future__ import annotations

import numpy as np
import pytest

import meadow
from meadow.errors import ConfigError
from meadow.strategies.algorithms.algorithm import Aggregate, State


class One(meadow.LocalAlgorithm):
    tensors = ("beside/one",)


def begun() -> State:
    return State(
        params={"w": np.ones((2, 2), np.float32), "n": np.array(3, np.int64)},
        slots={"momentum": {"w": np.zeros((2, 2), np.float32)}, "other": {"x": np.zeros(1)}},
    )


def test_params_and_slots_keep_their_dtypes() -> None:
    """Whole numbers are rounded; what is not given stays."""
    after = begun().moved(
        {"w": np.full((2, 2), 0.5), "n": np.array(3.6)}, momentum={"w": np.full((2, 2), 2.0)}
    )
    assert after.round == 1
    assert {n: (v.dtype.name, v.tolist()) for n, v in after.params.items()} == {
        "w": ("float32", [[0.5, 0.5], [0.5, 0.5]]),
        "n": ("int64", 4),
    }
    assert after.slots["momentum"]["w"].dtype == np.float32
    assert after.slots["other"] is begun().slots["other"] or after.slots["other"]["x"].tolist() == [
        0
    ]


@pytest.mark.parametrize(
    ("slots", "says"),
    [
        ({"late": {"w": np.zeros((2, 2))}}, r"slot 'late' of the new state: 'w' .* not there"),
        ({"momentum": {"v": np.zeros(2)}}, r"slot 'momentum' of the new state: 'v'"),
        ({"momentum": {"w": np.zeros(2)}}, r"'w' is a tensor of shape \(2,\)"),
    ],
)
def test_another_form_is_refused(slots: dict[str, dict[str, np.ndarray]], says: str) -> None:
    """In the first round, and not when somebody continues the run."""
    with pytest.raises(ConfigError, match=says):
        begun().moved({}, **slots)


def test_the_mean_by_default() -> None:
    """Without `apply` the params become the mean; slots begin as they are said to."""
    algorithm = meadow.averaging("plain", client=One(), tensors={"beside/one": (2,)})
    params = {"w": np.zeros(3, np.float32)}
    state = algorithm.init(params)
    assert {n: v.shape for n, v in algorithm.sent(state).items()} == {"w": (3,), "beside/one": (2,)}
    mean = {"w": np.full(3, 2, np.float32), "beside/one": np.ones(2)}
    after = algorithm.apply(state, Aggregate(mean=mean, weight=1.0, clients=1))
    assert after.params["w"].tolist() == [2, 2, 2]
    assert after.slots.keys() == state.slots.keys() == {"sent"}
    with pytest.raises(ConfigError, match='named as "kind/name"'):
        meadow.averaging("plain", client=One(), tensors={"one": ()})
    for client, tensors in ((None, {"beside/one": ()}), (One(), {})):
        with pytest.raises(ConfigError, match="name the same ones in both"):
            meadow.averaging("plain", client=client, tensors=tensors)
