"""Rules for recorded graphs: what they leave out or compute otherwise changes no bit."""

from __future__ import annotations

import copy
import operator
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from meadow.simulations.executors.vectorized.graph_rules import IN_PLACE, simplify

aten = torch.ops.aten
Step = Callable[..., Any]


def graphs(step: Step, *given: torch.Tensor) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return a step's graph as it is recorded, and simplified."""
    plain = make_fx(step, tracing_mode="real")(*(each.clone() for each in given))
    simple = copy.deepcopy(plain)
    simplify(simple.graph, on_cpu=True)
    simple.recompile()
    return plain, simple


def results(graph: fx.GraphModule, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return what a graph gives, and what it leaves in its arguments."""
    held = [each.clone() for each in given]
    with torch.no_grad():
        made = graph(*held)
    return [*(made if isinstance(made, tuple | list) else [made]), *held]


def assert_same(step: Step, *given: torch.Tensor) -> fx.GraphModule:
    plain, simple = graphs(step, *given)
    for one, other in zip(results(plain, given), results(simple, given), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    return simple


def count(graph: fx.GraphModule, operation: Any) -> int:
    return len(uses(graph, operation))


def uses(graph: fx.GraphModule, operation: Any) -> list[fx.Node]:
    """Return an operation's nodes, also where it writes over its argument."""
    either = operation, IN_PLACE.get(operation, operation)
    return [node for node in graph.graph.nodes if node.target in either]


def images(*, ties: bool, nan: bool, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.randn(3, 5, 9, 11, generator=torch.Generator().manual_seed(1), dtype=dtype)
    if ties:
        made = made.round()
    if nan:
        made.view(-1)[::7] = torch.nan
        made.view(-1)[::11] = -torch.inf
    return made


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (2, 3), "dilation": (1, 2)},
        {"kernel_size": 2, "ceil_mode": True},
    ],
)
def test_max_pooling(settings: dict[str, Any], ties: bool, nan: bool) -> None:
    """Forward and backward: of values alike the same one is chosen, and so it is of NaN."""
    given = images(ties=ties, nan=nan)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pooled = functional.max_pool2d(x, **settings)
        return pooled, *torch.autograd.grad((pooled * pooled.detach()).sum(), x)

    simple = assert_same(
        lambda x: step(x.detach().requires_grad_()), given.transpose(0, 1).contiguous()
    )
    assert not count(simple, aten.max_pool2d_with_indices.default)
    assert_same(lambda x: step(x.transpose(2, 3).detach().requires_grad_()), given)
    assert_same(lambda x: functional.max_pool2d(x[0], **settings), given)


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("settings", [(2,), (3, 2, 1), (3, 1)], ids=str)
def test_what_relu_stops_is_stopped_after_pooling(
    settings: tuple[int, ...], ties: bool, nan: bool
) -> None:
    """Where windows overlap, too; with clients, and shifted so that some windows are all zero."""
    given = images(ties=ties, nan=nan) - 0.5
    weights = torch.randn(200, generator=torch.Generator().manual_seed(2))

    def loss(x: torch.Tensor) -> torch.Tensor:
        pooled = functional.max_pool2d(torch.relu(x), *settings).flatten()
        return (pooled * weights.repeat(20)[: pooled.numel()]).sum()

    simple = assert_same(torch.func.grad(loss), given)
    assert count(simple, aten.threshold_backward.default) == 1
    (stopped,) = uses(simple, aten.threshold_backward.default)
    (user,) = stopped.users
    assert user.target is aten.max_pool2d_with_indices_backward.default
    (active,) = uses(simple, aten.relu.default)
    assert active.args[0].args[0].args[0].op == "placeholder"  # what is pooled
    assert_same(torch.vmap(torch.func.grad(loss)), given[:, :, None])


def test_what_is_pooled_is_activated_afterwards() -> None:
    """Also where nothing is differentiated, and behind a copy that puts clients beside images."""
    given = images(ties=True, nan=True)
    simple = assert_same(lambda x: functional.max_pool2d(torch.relu(x), 2) + 1, given)
    (active,) = uses(simple, aten.relu.default)
    assert active.args[0].target is operator.getitem

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        pooled = functional.max_pool2d(torch.relu(x + y[:, None, None]), 2)
        return pooled.square().nansum() + pooled.nansum() * 3

    of_clients = torch.vmap(torch.func.grad(loss, argnums=(0, 1)))
    stack = torch.stack([given.nan_to_num(0.5), -given.nan_to_num(0.5).abs()])
    assert_same(of_clients, stack, torch.randn(2, 5))


def test_what_has_another_use_is_activated_before() -> None:
    """It is returned, joined with something, changed, or pooled twice; or places are asked for."""
    given = images(ties=False, nan=False)

    def returned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        active = torch.relu(x)
        return functional.max_pool2d(active, 2), active

    def joined(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        active = torch.relu(x)
        return functional.max_pool2d(active, 2), torch.cat([x, active])

    def overwritten(x: torch.Tensor) -> torch.Tensor:
        active = torch.relu(x)
        x.add_(1)
        return functional.max_pool2d(active, 2)

    def twice(x: torch.Tensor) -> torch.Tensor:
        active = torch.relu(x)
        return functional.max_pool2d(active, 3).sum() + functional.max_pool2d(active, 2).sum()

    def unpooled(x: torch.Tensor) -> torch.Tensor:
        pooled, places = functional.max_pool2d(torch.relu(x), 2, return_indices=True)
        return functional.max_unpool2d(pooled + 1, places, 2, output_size=x.shape[-2:])

    for step in (returned, joined, overwritten, twice, unpooled):
        simple = assert_same(step, given)
        pools = [n for n in simple.graph.nodes if n.name.startswith("max_pool2d")]
        assert all(pool.args[0].op != "placeholder" for pool in pools)


def test_what_relu_stops_of_something_else_is_stopped_there() -> None:
    """Where what it gave, or the gradient that comes back, has another use as well."""
    given = images(ties=False, nan=False)

    def twice(x: torch.Tensor) -> torch.Tensor:
        active = torch.relu(x)
        return functional.max_pool2d(active, 2).sum() + active.square().sum()

    def before(x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(torch.relu(x) * 2 - 1, 2).square().sum()

    def above(x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(functional.threshold(x, 0.5, 0.0), 2).square().sum()

    for loss in (twice, before, above):
        assert_same(torch.func.grad(loss), given)

    shift = torch.full((), 0.5)

    def changed_later(x: torch.Tensor) -> torch.Tensor:
        pooled = functional.max_pool2d(torch.relu(x), 2)
        pooled -= shift
        return pooled.square().sum()

    def view_changed_later(x: torch.Tensor) -> torch.Tensor:
        pooled = functional.max_pool2d(torch.relu(x), 2)
        pooled.flatten(1)[:, ::2].mul_(-1)
        return pooled.square().sum()

    for loss in (changed_later, view_changed_later):
        assert_same(torch.func.grad(loss), given)

    def gradients(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        active = torch.relu(x)
        values, places = aten.max_pool2d_with_indices.default(active, [2, 2])
        back = aten.max_pool2d_with_indices_backward.default(
            values, active, [2, 2], [2, 2], [0, 0], [1, 1], False, places
        )
        return aten.threshold_backward.default(back, active, 0), back + 1

    assert_same(gradients, given)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_max_pooling_in_other_precisions(dtype: torch.dtype) -> None:
    """Comparing does not round."""
    assert_same(lambda x: functional.max_pool2d(x, 2), images(ties=True, nan=True).to(dtype))


@pytest.mark.parametrize("masked", [(), (0,), (0, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("dim", [-1, 1])
def test_softmax_of_masked_rows(masked: tuple[int, ...], dim: int) -> None:
    """Rows without anything to attend to give zeros; NaN stays."""
    scores = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(2))
    scores[0, 1, 2] = -torch.inf
    scores[1, 2, 0] = torch.nan
    for row in masked:
        scores.transpose(dim, -1)[0, row] = -torch.inf
    simple = assert_same(lambda x: aten._safe_softmax(x, dim), scores)
    assert not count(simple, aten._safe_softmax.default)
    assert_same(lambda x: aten._safe_softmax(x, dim, torch.float64), scores)


def test_what_is_computed_twice_is_computed_once() -> None:
    """Unless one of the two was changed in between, or is to be changed."""
    given = torch.randn(4, 5)
    simple = assert_same(lambda x: (x.t().exp() + 1, x.t().exp() + 2), given)
    assert count(simple, aten.exp.default) == 1

    def changes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x + 1
        second = x + 1
        first.mul_(3)
        third = x + 1
        x.mul_(2)
        return first, second, third, x + 1

    assert_same(changes, given)

    def fills(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, other = torch.empty_like(x), torch.empty_like(x)
        one.copy_(x)
        other[1:].copy_(-x[1:])
        return one, other[1:].clone()

    assert_same(fills, given)


def test_a_copy_of_what_lies_like_it_is_spared() -> None:
    """Of the step's own tensors only: what is returned of an argument must not be the argument."""
    given = torch.randn(4, 5)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x.exp()
        kept = made.t().contiguous().t().contiguous()
        return kept * 2, x.t().contiguous().t().contiguous()

    _, simple = graphs(step, given)
    assert_same(step, given)
    held = given.clone()
    _, returned = simple(held)
    returned.add_(1)
    assert torch.equal(held, given)

    def changed_later(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x.exp()
        before = aten.clone(made, memory_format=torch.contiguous_format)
        made.mul_(2)
        return before, made

    assert_same(changed_later, given)


def test_views_that_come_back_are_skipped() -> None:
    """A tensor is used itself, also where it is then changed; other views stay."""

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        there = x.t().unsqueeze(0).expand(1, 4, 3).squeeze(0).t()
        back = aten._unsafe_view.default(there.view(12).view(3, 4), [3, 4])
        back.add_(1)
        return [back * 2, x.t() + 1, x.view(4, 3) - 1, x[1:].t().t() * 3]

    simple = assert_same(step, torch.randn(3, 4))
    assert count(simple, aten._unsafe_view.default) == count(simple, aten.unsqueeze.default) == 0
    assert (count(simple, aten.t.default), count(simple, aten.view.default)) == (1, 1)
    square = assert_same(lambda x: x.t() @ x.t().t(), torch.randn(4, 4))
    assert count(square, aten.t.default) == 1


def test_a_view_of_other_memory_stays() -> None:
    """It lies alike, but is a part of something else."""
    simple = assert_same(lambda x: x.t()[:2, :2].t() + x[:2, :2], torch.randn(4, 4))
    assert count(simple, aten.t.default) == 2


def test_nothing_is_multiplied_by_one() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        made = x * torch.ones_like(x) + torch.ones_like(x[:, :1]).expand(3, 4) * y
        return [aten.mul.Scalar(made, 1) - aten.mul.Scalar(y, 2), made * torch.ones(2, 3, 4)]

    given = torch.randn(3, 4), torch.randn(3, 4)
    given[0][0, 0], given[0][0, 1] = torch.nan, -0.0
    simple = assert_same(step, *given)
    assert (count(simple, aten.mul.Scalar), count(simple, aten.mul.Tensor)) == (1, 1)


def test_a_product_with_one_that_may_be_overwritten_is_made() -> None:
    """It is returned, or changed, or its factor is."""

    def step(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        changed, before = aten.mul.Scalar(x, 1), aten.mul.Scalar(y, 1)
        changed.add_(1)
        y.sub_(1)
        return [changed.sum(), before.sum(), aten.mul.Scalar(x, 1).t()]

    given = torch.randn(3, 4), torch.randn(3, 4)
    assert count(assert_same(step, *given), aten.mul.Scalar) == 3
    mixed = assert_same(lambda x: (x * torch.ones(3, 4, dtype=torch.float64)).sum(), given[0])
    assert count(mixed, aten.mul.Tensor) == 1


def test_numbers_are_made_once() -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        changed = torch.scalar_tensor(2.0)
        changed.add_(x.sum())
        return [torch.where(x > 0, x, torch.scalar_tensor(3.0)), changed, torch.scalar_tensor(4.0)]

    given = torch.randn(3, 4)
    simple = assert_same(step, given)
    assert count(simple, aten.scalar_tensor.default) == 2
    for _ in range(2):
        made = simple(given.clone())
        assert made[2] == 4.0
        made[2].zero_()


OPERATIONS: list[Callable[[random.Random, list[torch.Tensor]], Sequence[torch.Tensor]]] = [
    lambda draw, pool: [pick(draw, pool) + pick(draw, pool)],
    lambda draw, pool: [torch.add(pick(draw, pool), pick(draw, pool), alpha=2)],
    lambda draw, pool: [pick(draw, pool) * pick(draw, pool)],
    lambda draw, pool: [pick(draw, pool) - pick(draw, pool)],
    lambda draw, pool: [pick(draw, pool) / 3],
    lambda draw, pool: [pick(draw, pool) * pick(draw, pool)[:1]],
    lambda draw, pool: [pick(draw, pool)[:, :1] + pick(draw, pool)],
    lambda draw, pool: [-pick(draw, pool)],
    lambda draw, pool: [torch.relu(pick(draw, pool))],
    lambda draw, pool: [torch.tanh(pick(draw, pool)), torch.sigmoid(pick(draw, pool))],
    lambda draw, pool: [pick(draw, pool).t()],
    lambda draw, pool: [pick(draw, pool).reshape(-1).view(4, 4)],
    lambda draw, pool: [pick(draw, pool)[draw.randrange(4)].expand(4, 4)],
    lambda draw, pool: [pick(draw, pool).clone()],
    lambda draw, pool: [torch.cat([pick(draw, pool)[:2], pick(draw, pool)[2:]])],
    lambda draw, pool: pick(draw, pool).repeat(2, 1).split(4),
    lambda draw, pool: [pick(draw, pool) @ pick(draw, pool)],
    lambda draw, pool: [pick(draw, pool).softmax(1)],
    lambda draw, pool: aten.native_layer_norm(pick(draw, pool), [4], None, None, 1e-5)[:1],
    lambda draw, pool: [aten.threshold_backward(pick(draw, pool), pick(draw, pool), 0)],
    lambda draw, pool: [pick(draw, pool).clone().mul_(pick(draw, pool))],
    lambda draw, pool: [(pick(draw, pool) + 1).add_(pick(draw, pool)).t()],
    lambda draw, pool: [(pick(draw, pool) * 1).double().float()],
    lambda draw, pool: [torch.where(pick(draw, pool) > 0, pick(draw, pool), pick(draw, pool))],
]


def pick(draw: random.Random, pool: list[torch.Tensor]) -> torch.Tensor:
    """Return one of the values so far, rather a late one."""
    return pool[-1 - min(draw.randrange(len(pool)), draw.randrange(len(pool)))]


def program(seed: int) -> Step:
    """Return a step of some operations: views of one another, values that are read much later."""

    def step(*given: torch.Tensor) -> list[torch.Tensor]:
        draw, pool = random.Random(seed), list(given)
        for _ in range(draw.randrange(3, 25)):
            pool += draw.choice(OPERATIONS)(draw, pool)
        return [pick(draw, pool) for _ in range(draw.randrange(1, 4))]

    return step


def test_results_are_written_over_what_nobody_reads_any_more() -> None:
    """In a hundred programs: no argument changes, and no result."""
    written = made = 0
    for seed in range(120):
        generator = torch.Generator().manual_seed(seed)
        given = [torch.randn(4, 4, generator=generator) for _ in range(2)]
        simple = assert_same(program(seed), *given)
        in_place = sum(node.target in IN_PLACE.values() for node in simple.graph.nodes)
        written, made = written + in_place, made + len(simple.graph.nodes)
    assert written > made / 20


def test_an_argument_a_result_and_what_is_read_later_are_not_written_over() -> None:
    """Nor views of them, whatever they are views of."""

    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        argument = x.t() * y
        read = torch.exp(x)
        view = read.view(-1)
        later = torch.relu(read) + 1
        returned = torch.exp(y)
        over = returned.view(-1) * 2
        return argument, later + view.view(4, 4), returned, over

    given = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(3))
    simple = assert_same(step, *given)
    written = {node.name for node in simple.graph.nodes if node.target in IN_PLACE.values()}
    assert written == {"add", "add_1"}  # over what relu made, and over that


@pytest.mark.parametrize("annotated", [False, True])
def test_what_an_operation_of_others_may_return_is_not_written_over(annotated: bool) -> None:
    """It may be an argument itself, the second one, or in some steps only."""
    name = "annotated" if annotated else "plain"
    argument, result = ("Tensor(a)", "Tensor(a)") if annotated else ("Tensor", "Tensor")
    with torch.library._scoped_library(f"rules_{name}", "DEF") as library:
        library.define(f"limit(Tensor most, {argument} x) -> {result}")
        library.impl("limit", lambda most, x: x if x.max() < most else x.clamp(max=most), "CPU")
        limit = getattr(torch.ops, f"rules_{name}").limit

        def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            made = torch.exp(x)
            limited = limit(x.sum() * 0 + 3, made)
            return torch.tanh(limited * 1.5) * 2, made * 3

        _, simple = graphs(step, torch.full((4, 4), 2.0))  # where there is something to limit
        given = torch.full((4, 4), 0.5)
        for one, other in zip(step(given), simple(given), strict=True):
            assert torch.equal(one, other)


def test_half_of_a_pair_of_results_is_written_over() -> None:
    """Each of an operation's results has memory of its own."""

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made, mean, _ = aten.native_layer_norm(x, [4], None, None, 1e-5)
        return made * 2, torch.exp(mean)

    simple = assert_same(step, torch.randn(4, 4))
    assert [node.target for node in uses(simple, aten.mul.Tensor)] == [aten.mul_.Tensor]
