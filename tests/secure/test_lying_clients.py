"""What the server refuses of a client that lies: it is out, and the others' sum is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from meadow.flower import params_to_arrays
from meadow.privacy.secure_kinds import IDENTITY
from meadow.privacy.secure_terms import MASKED

from .arena import STEPS, Arena, combined, model, plain_app, reasons, require_mean


def says(*, record: str = "secure", **fields: Any) -> Callable[[Message], None]:
    """Return what changes fields of a client's answer; None takes one away."""

    def change(message: Message) -> None:
        said = {**message.content[record], **fields}
        kept = {name: value for name, value in said.items() if value is not None}
        message.content[record] = ConfigRecord(kept)

    return change


def introduces(**fields: Any) -> Callable[[Message], None]:
    """Return what changes fields of what a client says of itself."""
    return says(record="introduction", **fields)


def masks(bytes_: int, dtype: Any = np.uint8) -> Callable[[Message], None]:
    """Return what replaces a masked vector."""

    def change(message: Message) -> None:
        message.content[MASKED] = params_to_arrays({MASKED: np.zeros(bytes_, dtype)})

    return change


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        (IDENTITY, introduces(advertised=None), "of another version than 3"),
        (IDENTITY, introduces(advertised=b"short"), "malformed"),
        (IDENTITY, introduces(advertised=b"unsigned".ljust(160)), "signature of client '2'"),
        (IDENTITY, introduces(key=b"k" * 33), "malformed"),
        (IDENTITY, introduces(key=b"k" * 32), "signature of client '2'"),
        (IDENTITY, introduces(certificate=b"c" * 5000), "malformed"),
        (STEPS[0], says(message=b""), ""),
        (STEPS[0], says(message=b"x" * (1 << 20)), ""),
        (STEPS[1], masks(1 << 20), "not an array of so many bytes"),
        (STEPS[1], masks(100, np.float64), "not an array of so many bytes"),
        (STEPS[1], masks(0), ""),
    ],
)
def test_what_a_client_may_not_say(
    kind: str, change: Callable[[Message], None], reason: str
) -> None:
    """Of an older version, malformed or too large: one reason, and a sum without it."""
    arena = Arena(5)

    def alter(message: Message) -> Message:
        if (message.metadata.src_node_id, message.metadata.message_type) == (2, kind):
            change(message)
        return message

    arena.wire.on_way_back = alter
    replies = arena.round()
    require_mean(combined(replies), [1, 3, 4, 5], 1, model())
    assert set(reasons(replies)) == {2} and reason in reasons(replies)[2]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num-examples": 0}, "num-examples must be a whole number >= 1"),
        ({"num-examples": -5}, "num-examples must be a whole number >= 1"),
        ({"num-examples": float("nan")}, "num-examples must be a whole number >= 1"),
        ({"weight": np.nan}, "not finite"),
        ({"weight": np.inf}, "not finite"),
    ],
    ids=str,
)
def test_updates_that_no_sum_takes(changes: dict[str, float], reason: str) -> None:
    """The client itself refuses what its app made, before anything is masked."""
    inner, app = plain_app(), ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = inner(message, context)
        if context.node_id == 3:
            metrics: MetricRecord = reply.content["metrics"]
            for name, value in changes.items():
                if name in metrics:
                    metrics[name] = value
                else:
                    params = {**model(), name: np.full((3, 4), value, np.float32)}
                    reply.content["arrays"] = params_to_arrays(params)
        return Message(RecordDict(dict(reply.content.items())), reply_to=message)

    replies = Arena(5, app=app).round()
    require_mean(combined(replies), [1, 2, 4, 5], 1, model())
    assert reason in reasons(replies)[3]


def test_copied_keys() -> None:
    """Who shows the keys of another client, or of an earlier time of its own, is out."""
    arena = Arena(5)
    shown: dict[int, Any] = {}

    def copy(message: Message) -> Message:
        node = message.metadata.src_node_id
        if message.metadata.message_type == IDENTITY:
            shown[node] = message.content["introduction"]
            if node == 4:
                message.content["introduction"] = ConfigRecord(dict(shown[1]))
        return message

    arena.wire.on_way_back = copy
    replies = arena.round()
    assert "a public key of another client" in reasons(replies)[4]
    require_mean(combined(replies), [1, 2, 3, 5], 1, model())


def test_a_bad_introduction_ahead_of_the_evaluation() -> None:
    """What cannot be used is asked for again, of that client alone."""
    arena = Arena(4)
    spoil = introduces(advertised=b"short")

    def alter(message: Message) -> Message:
        if (message.metadata.src_node_id, message.metadata.message_type) == (3, STEPS[-1]):
            spoil(message)
        return message

    arena.wire.on_way_back = alter
    combined(arena.round())
    arena.wire.on_way_back = lambda message: message
    before = len(arena.wire.asked)
    said = combined(arena.round(kind="evaluate"))
    assert said.content["metrics"]["combined-clients"] == [1, 2, 3, 4]
    asked = [message.metadata for message in arena.wire.asked[before:]]
    assert [one.dst_node_id for one in asked if one.message_type == IDENTITY] == [3]


def test_a_huge_weight_counts_as_the_largest() -> None:
    """A client that claims a billion examples has the most that the terms allow, not the model."""
    inner, app = plain_app(), ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = inner(message, context)
        if context.node_id == 1:
            reply.content["metrics"]["num-examples"] = 10**9
        return reply

    said = combined(Arena(5, app=app).round()).content["metrics"]
    assert said["num-examples"] == 65_535 // 5 + 20 + 30 + 40 + 50
