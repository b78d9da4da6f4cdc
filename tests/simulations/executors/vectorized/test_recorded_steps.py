"""Steps that are replayed: they give the mapped step's bits, on every model, or are not replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import MessageType

from meadow.flower.messages import arrays_to_params
from meadow.simulations.executors.vectorized import recorded_steps
from meadow.simulations.executors.vectorized.executor import VectorizedExecutor
from meadow.simulations.executors.vectorized.linear_training import LinearModules
from meadow.simulations.executors.vectorized.recorded_steps import RecordedSteps

from ..model_zoo import ZOO
from ..test_model_zoo import SETTINGS, executor_of, order_of, task_of

NEVER = 1 << 30
Params = dict[int, dict[str, Any]]


@pytest.fixture(autouse=True)
def everything_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear layers too, which else go another way. Of each model two shapes are recorded, for time."""
    monkeypatch.setattr(LinearModules, "of", lambda stacked: None)
    monkeypatch.setattr(recorded_steps, "RECORDINGS_MAX", 2)


def rounds(model: str, settings: str, count: int, *, poked: int | None = None) -> list[Params]:
    """Return each round's clients' params; all rounds are the same, of one executor."""
    task = task_of(ZOO[model], poked=poked)
    executor: VectorizedExecutor = executor_of("vectorized", task, [])
    made = []
    for _ in range(count):
        order = order_of(task, MessageType.TRAIN, SETTINGS[settings])
        replies = {each.metadata.src_node_id: each for each in executor.execute(order)}
        assert not any(each.has_error() for each in replies.values())
        made.append(
            {
                client: dict(arrays_to_params(each.content.array_records["arrays"]))
                for client, each in replies.items()
            }
        )
    return made


def assert_same_bits(one: Params, other: Params) -> None:
    for client, params in one.items():
        for name, values in params.items():
            assert np.array_equal(values, other[client][name], equal_nan=True), (client, name)


@pytest.mark.parametrize("model", ZOO)
def test_a_replayed_step_gives_the_bits_of_the_mapped_one(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the model does: recorded in the first round, proven in the second, then replayed."""
    monkeypatch.setattr(recorded_steps, "RECORD_AFTER", NEVER)
    (mapped,) = rounds(model, "momentum", 1)
    monkeypatch.setattr(recorded_steps, "RECORD_AFTER", 1)
    for replayed in rounds(model, "momentum", 3):
        assert_same_bits(replayed, mapped)


@pytest.mark.parametrize("model", list(ZOO)[::8])
def test_clients_stay_apart_in_replayed_steps(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client's data change that client's update alone."""
    monkeypatch.setattr(recorded_steps, "RECORD_AFTER", 1)
    before, after = rounds(model, "sgd", 3)[-1], rounds(model, "sgd", 3, poked=2)[-1]
    for client, params in before.items():
        close = [
            np.allclose(after[client][name], values, rtol=1e-6, atol=1e-7)
            for name, values in params.items()
        ]
        assert all(close) == (client != 3), client


def test_most_models_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would compare mapped steps with mapped steps."""
    monkeypatch.setattr(recorded_steps, "RECORD_AFTER", 1)
    replayed: set[str] = set()
    run = recorded_steps._Recording.run
    now = ""

    def noting(self: Any, *arguments: Any) -> Any:
        if self.is_proven:
            replayed.add(now)
        return run(self, *arguments)

    monkeypatch.setattr(recorded_steps._Recording, "run", noting)
    stacked = [name for name, habit in ZOO.items() if habit.stacked]
    common = [
        "mlp",
        "small cnn",
        "two convolutions",
        "overlapping pools",
        "residual cnn",
        "batch norm",
    ]
    for now in [*stacked[::8], *common]:
        rounds(now, "sgd", 3)
    assert len(replayed & {*stacked[::8]}) >= 0.9 * len(stacked[::8]), {*stacked[::8]} - replayed
    assert {*common} <= replayed, {*common} - replayed


Tensors = list[torch.Tensor]


def counting(*tensors: torch.Tensor) -> Tensors:
    """Depends on how often it was called."""
    counting.calls += 1  # type: ignore[attr-defined]
    return [tensors[0] * counting.calls]  # type: ignore[attr-defined]


def reading(*tensors: torch.Tensor) -> Tensors:
    """Depends on a value by way of Python."""
    return [tensors[0] * 2 if tensors[0][0].item() > 0 else tensors[0] * 3]


def raising_when_copied(*tensors: torch.Tensor) -> Tensors:
    """Does not work on anything but plain tensors."""
    if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
        raise RuntimeError("not under a mode")
    return [tensors[0] + 1]


@pytest.mark.parametrize("step", [counting, reading, raising_when_copied])
def test_what_cannot_be_replayed_stays_mapped(
    step: Callable[..., Tensors], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its results are those of the step itself, call after call."""
    monkeypatch.setattr(recorded_steps, "RECORD_AFTER", 1)
    counting.calls = 0  # type: ignore[attr-defined]
    steps = RecordedSteps(step)
    for number in range(5):
        given = torch.full((3,), 1.0 if number % 2 else -1.0)
        (made,) = steps.run([given], None)
        if step is reading:
            assert torch.equal(made, given * (2 if number % 2 else 3))
        if step is raising_when_copied:
            assert torch.equal(made, given + 1)
        if step is counting:
            assert torch.equal(made, given * counting.calls)  # type: ignore[attr-defined]


def test_changes_in_place_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer counts the steps, whether they are mapped, compared or replayed."""
    monkeypatch.setattr(recorded_steps, "RECORD_AFTER", 2)
    steps = RecordedSteps(lambda given, buffer: [given + buffer.add_(1)])
    buffer = torch.zeros(1)
    for number in range(1, 7):
        (made,) = steps.run([torch.ones(1), buffer], None)
        assert buffer.item() == number and made.item() == number + 1


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes that do not come back are forgotten, and only so many are recorded."""
    monkeypatch.setattr(recorded_steps, "RECORD_AFTER", 2)
    monkeypatch.setattr(recorded_steps, "SHAPES_MAX", 20)
    monkeypatch.setattr(recorded_steps, "RECORDINGS_MAX", 8)
    steps = RecordedSteps(lambda given: [given + 1])
    for size in [*range(1, 60), *range(1, 60), *range(1, 15), *range(1, 15), *range(1, 15)]:
        assert torch.equal(steps.run([torch.zeros(size)], None)[0], torch.ones(size))
    assert len(steps._uses) <= 20
    assert len(steps._recordings) == 8


@pytest.mark.parametrize("dimension", [0, 1, -1])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (0, 1), (0, 1, 1)])
def test_sums_of_selections_are_stacked(order: tuple[int, ...], dimension: int) -> None:
    """Where every place is there once; else the sum stays."""

    def step(*parts: torch.Tensor) -> Tensors:
        made = [
            torch.ops.aten.select_backward(part, [3, 3], dimension, place)
            for part, place in zip(parts, order, strict=True)
        ]
        return [sum(made[1:], made[0])]

    given = [torch.randn(3) for _ in order]
    recording = recorded_steps._Recording.of(step, given)
    assert recording is not None
    assert torch.equal(recording.run(given, None)[0], step(*given)[0])
    targets = {node.target for node in recording._graph.graph.nodes}
    assert (torch.ops.aten.stack.default in targets) == (sorted(order) == [0, 1, 2])
