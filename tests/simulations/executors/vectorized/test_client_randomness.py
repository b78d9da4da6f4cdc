"""Random numbers of many clients at once are those of each alone, in however many threads they are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from meadow.simulations.executors.vectorized import client_randomness
from meadow.simulations.executors.vectorized.client_randomness import ClientRandomness
from meadow.simulations.executors.vectorized.step_trace import Draw, TensorKind

aten = torch.ops.aten
CPU = torch.device("cpu")
SEEDS = [3, 1, 4, 15, 92, 65, 35]
FILLS = {
    "bernoulli": (aten.bernoulli_.float, (0.9,)),
    "uniform": (aten.uniform_.default, (-1.0, 2.0)),
    "normal": (aten.normal_.default, (0.5, 2.0)),
    "exponential": (aten.exponential_.default, (1.5,)),
    "integers": (aten.random_.to, (100,)),
    "log-normal": (aten.log_normal_.default, (0.0, 1.0)),
}
SHAPES = [(3,), (16,), (5, 7), (2, 4, 33)]
"""Normal numbers come in pairs below 16 values, and in blocks from there on."""


@pytest.fixture(params=[1, 2, 3, 16])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """So many threads of torch, which draw however few the values are."""
    monkeypatch.setattr(client_randomness, "THREADED_VALUES", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def drawn_alone(seed: int, draws: list[tuple[Any, tuple[Any, ...], torch.Tensor]]) -> list[Any]:
    """Draw as a client alone does."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return [operation(like.clone(), *more) for operation, more, like in draws]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fill", FILLS)
def test_every_client_draws_its_own_numbers(
    threads: int, fill: str, shape: tuple[int, ...]
) -> None:
    """Twice, so that each generator goes on from where it was, and with another draw in between."""
    operation, more = FILLS[fill]
    like = torch.zeros(shape)
    between = Draw(aten.rand_like.default, (TensorKind.of(like),), {})
    draw = Draw(operation, (TensorKind.of(like), *more), {})
    randomness = ClientRandomness(SEEDS, CPU)
    before = torch.default_generator.get_state()
    low, high = 1, len(SEEDS)  # the first client has no such step
    randomness.begin(low, high, (draw, between, draw))
    stack = torch.zeros(high - low, *shape)
    made = [
        randomness.drawn(operation, (stack.clone(), *more), {}),
        randomness.drawn(aten.rand_like.default, (stack,), {}),
        randomness.drawn(operation, (stack.clone(), *more), {}),
    ]
    randomness.end()
    for row, seed in enumerate(SEEDS[low:high]):
        steps = [(operation, more, like), (aten.rand_like.default, (), like)] * 2
        for together, alone in zip(made, drawn_alone(seed, steps[:3]), strict=True):
            assert torch.equal(together[row], alone)
    assert torch.equal(torch.default_generator.get_state(), before)


def test_a_mark_takes_every_client_back(threads: int) -> None:
    operation, more = FILLS["normal"]
    draw = Draw(operation, (TensorKind.of(torch.zeros(5)), *more), {})
    randomness = ClientRandomness(SEEDS, CPU)
    randomness.begin(0, len(SEEDS), (draw,))
    mark = randomness.mark()
    first = randomness.drawn(operation, (torch.zeros(len(SEEDS), 5), *more), {}).clone()
    randomness.back_to(mark)
    assert torch.equal(randomness.drawn(operation, (torch.zeros(len(SEEDS), 5), *more), {}), first)


def test_what_fails_in_a_thread_is_raised(threads: int) -> None:
    draw = Draw(aten.bernoulli_.float, (TensorKind.of(torch.zeros(5)), 1.5), {})
    randomness = ClientRandomness(SEEDS, CPU)
    randomness.begin(0, len(SEEDS), (draw,))
    with pytest.raises(RuntimeError, match="bernoulli_"):
        randomness.drawn(aten.bernoulli_.float, (torch.zeros(len(SEEDS), 5), 1.5), {})
