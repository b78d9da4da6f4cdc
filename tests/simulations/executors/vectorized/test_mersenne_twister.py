"""Compiled Bernoulli numbers are torch's, to the bit, and leave a generator where torch would."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from meadow.simulations.executors.vectorized import client_randomness, mersenne_twister
from meadow.simulations.executors.vectorized.client_randomness import ClientRandomness
from meadow.simulations.executors.vectorized.mersenne_twister import (
    VALUES_MIN,
    WORDS,
    BernoulliKernel,
    ClientGenerators,
)
from meadow.simulations.executors.vectorized.step_trace import Draw, TensorKind

CPU = torch.device("cpu")
SEEDS = [3, 1, 4, 15, 92]
SIZES = [VALUES_MIN, VALUES_MIN + 1, 7 * WORDS, 8 * WORDS + 1]
SHARES = [0.0, 2.0**-53, 2.0**-33, 2.0**-21, 1e-3, 0.1, 1 / 3, 0.5, 0.9, 1 - 2.0**-53, 1.0]


@pytest.fixture(scope="module")
def kernel() -> BernoulliKernel:
    """Compiled at once."""
    made = BernoulliKernel(compile_after=0)
    assert made.before(1) is not None
    return made


def alone(seeds: Sequence[int] = SEEDS) -> list[torch.Generator]:
    """Return torch's own generators."""
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def is_alike(ours: ClientGenerators, theirs: Sequence[torch.Generator]) -> bool:
    """Return whether all generators are at the same place."""
    return all(
        torch.equal(ours[client].get_state(), each.get_state())
        for client, each in enumerate(theirs)
    )


def words_of(generator: torch.Generator, count: int) -> None:
    """Draw so many words of 32 bits."""
    torch.empty(count).uniform_(generator=generator)


@pytest.mark.parametrize("p", SHARES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("before", [0, 1, 2, WORDS - 1, WORDS, WORDS + 1])
def test_numbers_and_generators_are_those_of_torch(
    kernel: BernoulliKernel, before: int, size: int, p: float
) -> None:
    """From every place in a generator's words, an odd one too; twice, and with others in between."""
    ours, theirs = ClientGenerators(SEEDS, CPU, kernel), alone()
    for client, each in enumerate(theirs):
        for generator in (ours[client], each):
            words_of(generator, before) if before else None
    for _ in range(2):
        for client, each in enumerate(theirs[1:4], 1):  # normal numbers are kept in pairs
            torch.testing.assert_close(
                torch.empty(3).normal_(generator=ours[client]),
                torch.empty(3).normal_(generator=each),
                rtol=0,
                atol=0,
            )
        for _ in range(2):
            made, wanted = torch.empty(3, size), torch.empty(3, size)
            assert ours.fill_bernoulli(range(1, 4), made, p)
            for row, each in zip(wanted, theirs[1:4], strict=True):
                row.bernoulli_(p, generator=each)
            assert torch.equal(made, wanted)
    assert is_alike(ours, theirs)


@pytest.mark.parametrize("before", [0, 1])
def test_the_second_word_decides_where_the_first_does_not(
    kernel: BernoulliKernel, before: int
) -> None:
    """The share is a number that is drawn: it is not below itself, and below the next one."""
    probe = torch.Generator().manual_seed(8)
    if before:
        words_of(probe, before)
    numbers = torch.empty(4 * VALUES_MIN, dtype=torch.float64).uniform_(generator=probe)
    for place in (0, 311, 312, 313, 5000, len(numbers) - 1):
        p = float(numbers[place])
        for share, drawn in ((p, 0.0), (math.nextafter(p, 1.0), 1.0)):
            ours = ClientGenerators([8], CPU, kernel)
            if before:
                words_of(ours[0], before)
            made = torch.empty(1, len(numbers))
            assert ours.fill_bernoulli(range(1), made, share)
            assert made[0, place] == drawn
            assert torch.equal(made[0], (numbers < share).float())


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_draw_the_same(kernel: BernoulliKernel, threads: int) -> None:
    shape = (len(SEEDS), 9, VALUES_MIN)
    with ThreadPoolExecutor(2) as pool:
        made = []
        for given in (None, (pool, threads)):
            ours = ClientGenerators(SEEDS, CPU, kernel)
            made.append(torch.empty(shape))
            assert ours.fill_bernoulli(range(len(SEEDS)), made[-1], 0.7, pool=given)
            assert ours.fill_bernoulli(range(2), made[-1][:2], 0.7, pool=given)
    assert torch.equal(*made)


@pytest.mark.parametrize(
    ("stack", "p"),
    [
        (torch.empty(5, 8), 0.5),
        (torch.empty(5, VALUES_MIN, dtype=torch.float64), 0.5),
        (torch.empty(5, VALUES_MIN, dtype=torch.bfloat16), 0.5),
        (torch.empty(VALUES_MIN, 5).T, 0.5),
        (torch.empty(5, VALUES_MIN), 1.5),
        (torch.empty(5, VALUES_MIN), math.nan),
    ],
    ids=["few", "float64", "bfloat16", "not in a row", "no share", "no number"],
)
def test_the_rest_is_left_to_torch(kernel: BernoulliKernel, stack: torch.Tensor, p: float) -> None:
    ours = ClientGenerators(SEEDS, CPU, kernel)
    assert not ours.fill_bernoulli(range(5), stack.zero_(), p)
    assert not stack.any()
    assert is_alike(ours, alone())


def test_compiling_begins_once_torch_has_drawn_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    monkeypatch.setattr(mersenne_twister, "_proven", lambda: compiled.append(1))
    lazy = BernoulliKernel(compile_after=100)
    assert [lazy.before(60) for _ in range(4)] == [None] * 4
    assert len(compiled) == 1  # it was not torch's, and is not tried again


@pytest.mark.parametrize("fault", ["raises", "another number", "another place", "another form"])
def test_what_is_not_torchs_is_not_used(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = mersenne_twister._compiled()

    def wrong(words: Any, used: Any, out: Any, bound: Any) -> None:
        right(words, used, out, bound)
        if fault == "another number":
            out[-1, -1] = 1 - out[-1, -1]
        used[:] -= fault == "another place"

    def compiled() -> Any:
        if fault == "raises":
            raise RuntimeError("no compiler for this machine")
        return wrong

    monkeypatch.setattr(mersenne_twister, "_compiled", compiled)
    if fault == "another form":
        monkeypatch.setattr(mersenne_twister, "STATE_BYTES", 5064)
    assert BernoulliKernel(compile_after=0).before(1) is None
    assert "torch draws" in caplog.text


def test_clients_draw_what_each_draws_alone(
    kernel: BernoulliKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout's draws among others, and a step that is taken back."""
    assert mersenne_twister.ClientGenerators is client_randomness.ClientGenerators
    monkeypatch.setattr(mersenne_twister._BERNOULLI, "_kernel", kernel._kernel)
    monkeypatch.setattr(mersenne_twister._BERNOULLI, "_is_tried", True)
    aten, like = torch.ops.aten, torch.zeros(4, VALUES_MIN)
    fill = Draw(aten.bernoulli_.float, (TensorKind.of(like), 0.8), {})
    other = Draw(aten.rand_like.default, (TensorKind.of(like),), {})
    used: list[bool] = []
    before = ClientGenerators.fill_bernoulli

    def noted(*given: Any, **more: Any) -> bool:
        used.append(before(*given, **more))
        return used[-1]

    monkeypatch.setattr(ClientGenerators, "fill_bernoulli", noted)
    randomness, stack = ClientRandomness(SEEDS, CPU), torch.empty(4, 4, VALUES_MIN)
    randomness.begin(1, 5, (fill, other, fill))
    mark = randomness.mark()
    for _ in range(2):
        with randomness:
            made = [
                stack.clone().bernoulli_(0.8),
                torch.rand_like(stack),
                stack.clone().bernoulli_(0.8),
            ]
        randomness.end()
        if len(used) == 2:
            randomness.back_to(mark)
    assert used == [True] * 4
    for row, generator in enumerate(alone()[1:]):
        wanted = [
            torch.empty_like(like).bernoulli_(0.8, generator=generator),
            torch.rand(like.shape, generator=generator),
            torch.empty_like(like).bernoulli_(0.8, generator=generator),
        ]
        assert all(torch.equal(one[row], each) for one, each in zip(made, wanted, strict=True))
