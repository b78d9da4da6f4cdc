"""Sums in groups: one reply a group, none of fewer clients than the owner of the run has said."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from meadow.errors import ConfigError
from meadow.flower.messages import params_to_arrays
from meadow.privacy.secagg.server.grid import SecureAggregationGrid
from meadow.privacy.secagg.server.group import draw_groups
from meadow.privacy.secagg.terms.announcement import Announcement
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan

from .arena import STEPS, TERMS, Arena, model, plain_mean, reasons, require_mean

GROUPED = replace(TERMS, group_size=4)
PLAN = RoundPlan(cohort=1.0, min_clients=4, deadline_s=60.0, seed=1)


def grouped(clients: int, *, seed: int = 3) -> Arena:
    """Return an arena whose cohort is summed in groups of four or more."""
    arena = Arena(clients)
    arena.grid = SecureAggregationGrid(arena.wire, GROUPED, seed=seed)
    return arena


def groups_in(replies: list[Message]) -> list[list[int]]:
    """Return whom each combined reply stands for."""
    return [
        list(reply.content["metrics"]["combined-clients"])
        for reply in replies
        if not reply.has_error()
    ]


def test_one_reply_a_group() -> None:
    """Every client is in one group, every group's mean is that of its clients."""
    arena = grouped(10)
    replies = arena.round()
    groups = groups_in(replies)
    assert sorted(map(len, groups)) == [5, 5] and sorted(chain(*groups)) == list(range(1, 11))
    for reply, nodes in zip(replies, groups, strict=True):
        require_mean(reply, nodes, 1, model())
    kinds = [message.metadata.message_type for message in arena.wire.asked]
    assert all(kinds.count(kind) == 10 for kind in STEPS)


def test_evaluation_in_groups() -> None:
    """The groups' metrics add up to the cohort's."""
    replies = grouped(9).round(kind="evaluate")
    examples = [reply.content["metrics"]["num-examples"] for reply in replies]
    assert len(examples) == 2 and sum(examples) == 10 * (sum(range(1, 10)) - 2)


@given(st.sets(st.integers(0, 2**64 - 1), min_size=3, max_size=60), st.integers(3, 20))
def test_groups_are_a_division(nodes: set[int], size: int) -> None:
    """Of all clients, as fine as can be, and of sizes that differ by one at most."""
    groups = draw_groups(list(nodes), size=size, seed=1, about=("train", 2))
    assert sorted(chain(*groups)) == sorted(nodes)
    sizes = [len(group) for group in groups]
    assert len(groups) == max(1, len(nodes) // size) and max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(size, len(nodes))


def test_groups_are_drawn_anew_every_round() -> None:
    """By the seed and the round, whatever the order of the clients."""
    nodes = list(range(1, 41))

    def drawn(seed: int, number: int) -> list[list[int]]:
        return draw_groups(nodes, size=10, seed=seed, about=("train", number))

    assert drawn(1, 1) == draw_groups(nodes[::-1], size=10, seed=1, about=("train", 1))
    different = {repr(drawn(seed, number)) for seed in (1, 2) for number in range(1, 11)}
    assert len(different) == 20
    together = sum(
        any({1, 2} <= set(group) for group in drawn(0, number)) for number in range(1, 401)
    )
    assert 50 < together < 150  # 9 of the 39 others are in one's group: 92 of 400


def test_what_needs_single_updates_takes_groups() -> None:
    """A strategy that is refused a sum of the whole cohort gets the groups' sums."""
    strategy = FederatedStrategy(replace(fedavg(), linear=False), PLAN)
    arena = grouped(8)
    result = strategy.start(arena.grid, params_to_arrays(model()), num_rounds=1)
    expected, _ = plain_mean(range(1, 9), 1, model())
    np.testing.assert_allclose(result.arrays["bias"].numpy(), expected["bias"], rtol=0, atol=1e-3)
    with pytest.raises(ConfigError, match="needs every single update"):
        strategy.start(Arena(8).grid, params_to_arrays(model()), num_rounds=1)


@pytest.mark.parametrize("kind", STEPS)
def test_a_group_that_falls_below_its_threshold(kind: str) -> None:
    """Has no sum, and each of its clients an error; the other group's sum is exact."""
    whole = groups_in(grouped(10).round())
    gone, others = set(whole[0][:3]), whole[1]
    arena = grouped(10)

    def lose(message: Message) -> Message | None:
        asked, late = message.metadata.message_type, STEPS[STEPS.index(kind) :]
        return None if message.metadata.src_node_id in gone and asked in late else message

    arena.wire.on_way_back = lose
    replies = arena.round()
    assert groups_in(replies) == [others]
    require_mean(replies[0], others, 1, model())
    assert set(reasons(replies)) == set(whole[0])
    assert "no secure sum" in reasons(replies)[whole[0][4]]


def test_a_cohort_that_is_no_group() -> None:
    """Three clients where groups have four."""
    found = reasons(grouped(3).round())
    assert set(found) == {1, 2, 3} and "a group must have at least 4 clients" in found[1]


def test_clients_refuse_a_smaller_group_than_announced() -> None:
    """A server that leaves clients out of what it tells one of them."""
    arena = grouped(4)

    def shrink(message: Message) -> Message:
        if (message.metadata.dst_node_id, message.metadata.message_type) == (1, STEPS[0]):
            told = Announcement.read(message.content["secure"])
            few = {node: told.keys[node] for node in (1, 2, 3)}
            message.content["secure"] = replace(told, keys=few).record()
        return message

    arena.wire.on_way_out = shrink
    assert "at least 4 clients (group_size), got 3" in reasons(arena.round())[1]
