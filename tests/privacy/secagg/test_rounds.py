"""Whole secure rounds: the mean is FedAvg's, whoever drops out and when, or there is none."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Message

from meadow.privacy.secagg.terms.terms import IDENTITY

from .arena import KINDS, STEPS, Arena, combined, model, reasons, require_mean


@pytest.mark.parametrize("clients", [3, 5, 10])
def test_a_round_gives_the_weighted_mean(clients: int) -> None:
    """As FedAvg of the same updates, within a step of the fixed-point numbers."""
    arena = Arena(clients)
    replies = arena.round()
    assert len(replies) == 1
    require_mean(combined(replies), range(1, clients + 1), 1, model())
    assert arena.told[0][0] == "secure_sum"


def test_rounds_follow_one_another() -> None:
    """Every round is a session of its own, from the new model."""
    arena, params = Arena(4), model()
    for number in (1, 2, 3):
        reply = combined(arena.round(number, params=params))
        require_mean(reply, range(1, 5), number, params)
        params = {name: np.asarray(values + 1) for name, values in params.items()}


def test_evaluation_is_summed_too() -> None:
    """Means by number of examples; a client without test data is in it with weight 0."""
    replies = Arena(4).round(kind="evaluate")
    said = combined(replies).content["metrics"]
    assert said["num-examples"] == 10 + 30 + 40
    expected = (10 * 0.5 + 30 * 1.5 + 40 * 2.0) / 80
    assert said["loss"] == pytest.approx(expected, abs=0.01)
    assert set(combined(replies).content.keys()) == {"metrics"}


def test_how_often_everybody_is_asked() -> None:
    """A round's training takes five exchanges; its evaluation four, as who is who is known."""
    arena = Arena(4)
    params = {name: values * 2 for name, values in model().items() if values.ndim}
    kinds = []
    for number, kind in ((1, "train"), (1, "evaluate"), (2, "evaluate"), (2, "train")):
        combined(arena.round(number, kind=kind, params=params if number == 2 else None))
        asked = [message.metadata.message_type for message in arena.wire.asked]
        kinds.append(asked[:: len(arena.wire.get_node_ids())])
        arena.wire.asked.clear()
    evaluated = ["evaluate.secure", *KINDS[2:]]
    assert kinds == [list(KINDS), evaluated, [IDENTITY, *evaluated], list(KINDS)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_stops_answering(kind: str) -> None:
    """At any step: before its vector it is left out, after it is in the sum; others go on."""
    arena = Arena(5)
    gone = KINDS.index(kind)

    def lose(message: Message) -> Message | None:
        late = KINDS.index(message.metadata.message_type) >= gone
        return None if message.metadata.src_node_id == 2 and late else message

    arena.wire.on_way_back = lose
    replies = arena.round()
    in_it = [1, 3, 4, 5] if gone <= KINDS.index(STEPS[1]) else [1, 2, 3, 4, 5]
    require_mean(combined(replies), in_it, 1, model())
    assert set(reasons(replies)) == set(range(1, 6)) - set(in_it)


@pytest.mark.parametrize("clients", [5, 16, 64, 200])
def test_clients_that_do_not_say_who_they_are(clients: int) -> None:
    """The session is of the others, however few: three have an exact sum, and two have none."""
    for there in (3, 2):
        arena = Arena(clients)
        arena.wire.on_way_back = lambda message, there=there: (
            message if message.metadata.src_node_id <= there else None
        )
        replies = arena.round()
        if there == 3:
            require_mean(combined(replies), range(1, 4), 1, model())
        assert len(reasons(replies)) == clients - 3 * (there == 3)
    assert "only 2 clients can take part, and 3 are needed" in reasons(replies)[1]


@pytest.mark.parametrize("kind", STEPS)
def test_too_many_dropouts_end_the_round(kind: str) -> None:
    """At any step: there is no sum, and everybody's reply is an error that says so."""
    arena = Arena(5)
    gone = STEPS.index(kind)

    def lose(message: Message) -> Message | None:
        asked = message.metadata.message_type
        late = asked in STEPS and STEPS.index(asked) >= gone
        return None if message.metadata.src_node_id in (2, 3) and late else message

    arena.wire.on_way_back = lose
    found = reasons(arena.round())
    assert set(found) == {1, 2, 3, 4, 5}
    assert "no secure sum" in found[1] and "are needed" in found[1]


def test_a_client_whose_app_raises_is_left_out() -> None:
    """Its own error is told; the others' sum goes on."""
    from flwr.app import Context
    from flwr.clientapp import ClientApp

    from .arena import plain_app

    inner, app = plain_app(), ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_id == 4:
            raise ValueError("the disk is full")
        return inner(message, context)

    arena = Arena(5, app=app)
    replies = arena.round()
    require_mean(combined(replies), [1, 2, 3, 5], 1, model())
    assert "the disk is full" in reasons(replies)[4]


def test_two_clients_are_too_few() -> None:
    """A sum of two is each one's secret told to the other."""
    found = reasons(Arena(2).round())
    assert "only 2 clients can take part, and 3 are needed" in found[1]


def test_same_seed_same_sum() -> None:
    """In a simulation rounding and masks follow from the seed."""
    first, second = (
        combined(Arena(4).round()).content["arrays"]["weight"].numpy().tobytes() for _ in range(2)
    )
    assert first == second
