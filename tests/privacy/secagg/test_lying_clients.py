"""What the server refuses of a client that lies: it is out, and the others' sum is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from meadow.flower.messages import params_to_arrays
from meadow.privacy.secagg.client.identity import pinned_identity, simulated_identity
from meadow.privacy.secagg.protocol.keys import sign
from meadow.privacy.secagg.protocol.steps import Purpose
from meadow.privacy.secagg.terms.terms import IDENTITY, MASKED

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
        (IDENTITY, introduces(advertised=None), "of another version than 4"),
        (IDENTITY, introduces(advertised=b"short"), "malformed"),
        (IDENTITY, introduces(advertised=b"unsigned".ljust(160)), "signature of client '2'"),
        (IDENTITY, introduces(key=b"k" * 33), "malformed"),
        (IDENTITY, introduces(key=b"k" * 32), "signature of client '2'"),
        (IDENTITY, introduces(certificate=b"c" * 5000), "malformed"),
        (STEPS[0], says(message=b""), ""),
        (STEPS[0], says(message=b"x" * (1 << 20)), ""),
        (STEPS[1], masks(1 << 20), "not an array of the planned size"),
        (STEPS[1], masks(100, np.float64), "not an array of the planned size"),
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


@pytest.mark.parametrize(("copier", "owner"), [(4, 1), (1, 4)])
def test_copied_keys(copier: int, owner: int) -> None:
    """Who shows what another client has shown, now or earlier, is out, and the other is not."""
    arena = Arena(5, identify=pinned_identity())
    shown: dict[int, Any] = {}

    def copy(message: Message) -> Message:
        node = message.metadata.src_node_id
        if message.metadata.message_type == IDENTITY:
            if node == copier and owner in shown:
                message.content["introduction"] = ConfigRecord(dict(shown[owner]))
            shown[node] = message.content["introduction"]
        return message

    arena.wire.on_way_back = copy
    arena.round()
    params = {name: values * 2 for name, values in model().items() if values.ndim}
    replies = arena.round(2, params=params)
    assert f"signature of client '{copier}' over its keys" in reasons(replies)[copier]
    others = [node for node in range(1, 6) if node != copier]
    require_mean(combined(replies), others, 2, params)


@pytest.mark.parametrize("start", [0, 32])
def test_keys_of_low_order(start: int) -> None:
    """Honestly signed, and nothing secret can be agreed on with them: that client alone is out."""
    arena = Arena(5)

    def weaken(message: Message) -> Message:
        node = message.metadata.src_node_id
        if (node, message.metadata.message_type) == (3, IDENTITY):
            said = message.content["introduction"]["advertised"][:96]
            said = said[:start] + bytes(32) + said[start + 32 :]
            key = simulated_identity(7)(arena.clients.context_of(3)).key
            advertised = said + sign(key, b"", Purpose.KEYS, b"3", said)
            introduces(advertised=advertised)(message)
        return message

    arena.wire.on_way_back = weaken
    replies = arena.round()
    assert "of client '3' is a point of low order" in reasons(replies)[3]
    require_mean(combined(replies), [1, 2, 4, 5], 1, model())


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
