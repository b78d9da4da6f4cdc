"""What clients refuse of a server that lies, over the messages that really go by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from meadow.errors import RefusedError
from meadow.flower.messages import params_to_arrays
from meadow.privacy.secagg.client.identity import pinned_identity, simulated_identity
from meadow.privacy.secagg.protocol import Minimum
from meadow.privacy.secagg.terms.announcement import Announcement
from meadow.privacy.secagg.terms.terms import ANSWERS

from .arena import KINDS, STEPS, TERMS, Arena, combined, model, plain_app, reasons, require_mean


def to(node: int, kind: str, change: Callable[[Message], Any]) -> Callable[[Message], Message]:
    """Return what changes the messages of one kind to one client."""

    def alter(message: Message) -> Message:
        if (message.metadata.dst_node_id, message.metadata.message_type) == (node, kind):
            change(message)
        return message

    return alter


def edited(message: Message, /, **fields: Any) -> None:
    """Change fields of the record "secure"."""
    message.content["secure"] = ConfigRecord({**message.content["secure"], **fields})


def flipped(message: Message, at: int = -1) -> None:
    """Flip a bit of what is said."""
    said = bytearray(message.content["secure"]["message"])
    said[at] ^= 1
    edited(message, message=bytes(said))


def emit(arena: Arena, node: int, kind: str, content: RecordDict, group: str = "1") -> Message:
    """Send one message past the server's code and return the answer."""
    message = Message(content, node, kind, group_id=group)
    (reply,) = arena.wire.send_and_receive([message])
    return reply


def refused(arena: Arena, node: int, kind: str, content: RecordDict, group: str = "1") -> str:
    """Return why a message is refused."""
    reply = emit(arena, node, kind, content, group)
    assert reply.has_error()
    return str(reply.error.reason)


def last_asked(arena: Arena, node: int, kind: str) -> RecordDict:
    """Return the last message of a kind that a client got."""
    return [
        message.content
        for message in arena.wire.asked
        if (message.metadata.dst_node_id, message.metadata.message_type) == (node, kind)
    ][-1]


@pytest.mark.parametrize("kind", ["train", "evaluate", "query", "train.other", "query.secure_all"])
def test_nothing_is_answered_plainly(kind: str) -> None:
    """Whatever is no part of a secure sum."""
    arena = Arena(3)
    message = arena.instructions(kind=kind)[0]
    with pytest.raises(RefusedError, match="only within secure sums"):
        arena.app(message, arena.clients.context_of(1))


def test_what_leaves_a_client() -> None:
    """Public keys, sealed shares, signatures and one masked vector: no metrics and no params."""
    arena = Arena(4)
    arena.round()
    assert {message.metadata.message_type for message in arena.wire.heard} == set(KINDS)
    for message in arena.wire.heard:
        assert not message.content.metric_records
        if message.metadata.message_type == "query.secure_vector":
            assert set(message.content.keys()) == {"masked"}
            continue
        for record in message.content.values():
            assert set(record) in (
                {"session", "message"},
                {"key", "advertised", "setup", "certificate"},
            )


@pytest.mark.parametrize("kind", STEPS)
def test_a_message_of_a_session_that_is_over(kind: str) -> None:
    """Every message of a finished session is refused when it is sent again."""
    arena = Arena(3)
    arena.round()
    expected = "begun before|newest that this client" if kind == STEPS[0] else "in no session"
    assert any(
        part in refused(arena, 1, kind, last_asked(arena, 1, kind)) for part in expected.split("|")
    )


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_step_is_answered_once(kind: str) -> None:
    """Asked the same again, a client ends the session: what is asked twice may be two things."""
    arena = Arena(5)
    again: list[str] = []

    def ask_again(message: Message) -> Message:
        sender = message.metadata.src_node_id
        if (sender, message.metadata.message_type) == (2, kind) and not again:
            again.append("")
            again[0] = refused(arena, 2, kind, last_asked(arena, 2, kind))
        return message

    arena.wire.on_way_back = ask_again
    arena.round()
    assert "is requested, but" in again[0] or "in no session" in again[0]
    assert not any(
        name in arena.clients.context_of(2).state
        for name in ("meadow-secure-session", "meadow-secure-vector")
    )


@pytest.mark.parametrize("kind", list(ANSWERS)[1:])
def test_a_step_is_not_skipped(kind: str) -> None:
    """After the shares comes the vector; asked for more, a client ends the session."""
    arena = Arena(3)
    arena.wire.on_way_out = lambda message: (
        None if message.metadata.message_type in ANSWERS else message
    )
    arena.round()
    session = last_asked(arena, 1, "train.secure")["secure"]["session"]
    arena.wire.on_way_out = lambda message: message
    content = RecordDict({"secure": ConfigRecord({"session": session, "message": b"x" * 64})})
    assert "this session is at mask" in refused(arena, 1, kind, content)
    assert "in no session" in refused(arena, 1, kind, content)


def test_a_round_is_not_repeated() -> None:
    """Not even one that failed before any vector left, and not with another model either."""
    arena = Arena(4)
    arena.wire.on_way_out = lambda message: (
        None if message.metadata.message_type in ANSWERS else message
    )
    arena.round(2)
    arena.wire.on_way_out = lambda message: message
    for number in (1, 2):
        other = {name: values * 3 for name, values in model().items() if values.ndim}
        found = reasons(arena.round(number, params=other))
        assert "a round that failed is not repeated" in found[1]


def test_one_masked_vector_a_model() -> None:
    """A new session for a model whose vector was masked is refused; before that it is not."""
    arena = Arena(4)
    arena.wire.on_way_out = lambda message: (
        None if message.metadata.message_type == "query.secure_vector" else message
    )
    arena.round(1)
    arena.wire.on_way_out = lambda message: (
        None if message.metadata.message_type == "query.secure_confirm" else message
    )
    arena.round(2)
    arena.wire.on_way_out = lambda message: message
    found = reasons(arena.round(3))
    assert set(found) == {1, 2, 3, 4}
    assert "difference of two sums" in found[1]


def test_another_model_for_one_client() -> None:
    """It computes another context: neither the server's code nor the others take its keys."""
    arena = Arena(5)
    other = {**model(), "bias": model()["bias"] + 1}

    def change(message: Message) -> None:
        message.content["arrays"] = params_to_arrays(other)

    arena.wire.on_way_out = to(2, "train.secure", change)
    replies = arena.round()
    require_mean(combined(replies), [1, 3, 4, 5], 1, model())
    assert "another session, round, model" in reasons(replies)[2]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda told: replace(told, keys={**told.keys, 4: bytes(32)}), "a key of its own"),
        (lambda told: replace(told, keys={**told.keys, 1: bytes(32)}), "is not in the cohort"),
        (lambda told: replace(told, keys={2: told.keys[2], 3: told.keys[3]}), "[3, 65520]"),
        (lambda told: replace(told, terms=replace(TERMS, corrupt=0.0)), "must be >= 1"),
        (lambda told: replace(told, round=2), "another session"),
        (lambda told: replace(told, terms=replace(TERMS, weight_max=1 << 20)), "could overflow"),
    ],
    ids=["key", "own key", "few", "weak", "round", "overflow"],
)
def test_another_announcement_for_one_client(
    change: Callable[[Announcement], Announcement], says: str
) -> None:
    """Keys, cohort and terms are checked against what the client knows and wants."""

    def identify(context: Any) -> Any:
        return replace(simulated_identity(7)(context), minimum=Minimum(corrupt=1))

    arena = Arena(5, identify=identify)

    def alter(message: Message) -> None:
        told = change(Announcement.read(message.content["secure"]))
        message.content["secure"] = told.record()

    arena.wire.on_way_out = to(1, "train.secure", alter)
    replies = arena.round()
    assert says in reasons(replies)[1]
    require_mean(combined(replies), [2, 3, 4, 5], 1, model())


def test_an_owner_who_wants_larger_cohorts_does_not_train() -> None:
    """The plan is refused before the app is asked for anything."""
    app, trained = plain_app(), []

    class Watched(type(app)):  # type: ignore[misc]
        def __call__(self, message: Message, context: Any) -> Message:
            trained.append(context.node_id)
            return app(message, context)

    def identify(context: Any) -> Any:
        return replace(simulated_identity(7)(context), minimum=Minimum(clients=6))

    found = reasons(Arena(5, app=Watched(), identify=identify).round())
    assert "the cohort must be >= 6 for this client, got 5" in found[3]
    assert trained == []


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_message_that_was_changed(kind: str) -> None:
    """One bit of what one client is told: it is out, and the others' sum is exact."""
    arena = Arena(5)
    arena.wire.on_way_out = to(2, kind, flipped)
    replies = arena.round()
    in_it = [1, 3, 4, 5] if kind in list(ANSWERS)[:1] else [1, 2, 3, 4, 5]
    require_mean(combined(replies), in_it, 1, model())


def test_two_sets_of_survivors() -> None:
    """A client that is told of other survivors signs something else: its signature counts not."""
    arena = Arena(5)

    def without_one(message: Message) -> None:
        flipped(message, 21)  # the set follows a header of 21 bytes: the first client is gone

    arena.wire.on_way_out = to(2, "query.secure_confirm", without_one)
    replies = arena.round()
    require_mean(combined(replies), [1, 2, 3, 4, 5], 1, model())


def test_another_sessions_message() -> None:
    """A message must be of the session that the client is in."""
    arena = Arena(5)
    arena.wire.on_way_out = to(
        2, "query.secure_vector", lambda message: edited(message, session=bytes(32))
    )
    assert "in another session" in reasons(arena.round())[2]


@pytest.mark.parametrize(
    "fields",
    [{"nodes": b"1"}, {"keys": b""}, {"metrics": 3}, {"metrics-max": 0.0}, {"session": b""}],
    ids=str,
)
def test_a_malformed_announcement(fields: dict[str, Any]) -> None:
    """Ends in an error that is told, whatever is wrong with it."""
    arena = Arena(5)
    arena.wire.on_way_out = to(2, "train.secure", lambda message: edited(message, **fields))
    replies = arena.round()
    assert set(reasons(replies)) == {2}


def test_a_key_that_changes_is_found_out() -> None:
    """Under any Flower: keys are pinned when they are first seen."""
    arena = Arena(4, identify=pinned_identity())
    combined(arena.round(1))
    params = {name: values * 2 for name, values in model().items() if values.ndim}

    def change(message: Message) -> None:
        told = Announcement.read(message.content["secure"])
        message.content["secure"] = replace(told, keys={**told.keys, 3: b"k" * 32}).record()

    arena.wire.on_way_out = to(1, "train.secure", change)
    replies = arena.round(2, params=params)
    assert "client 3 has another key than the one that it had at first" in reasons(replies)[1]
    require_mean(combined(replies), [2, 3, 4], 2, params)


def test_secrets_are_forgotten() -> None:
    """The vector when it was masked, and the seed when the session is over."""
    arena = Arena(3)
    kept: dict[str, set[str]] = {}

    def look(message: Message) -> Message:
        state = arena.clients.context_of(1).state
        kept[message.metadata.message_type] = set(state.keys())
        return message

    arena.wire.on_way_back = lambda message: (
        look(message) if message.metadata.src_node_id == 3 else message
    )
    arena.round()
    assert "meadow-secure-vector" in kept["train.secure"]
    assert "meadow-secure-vector" not in kept["query.secure_vector"]
    assert "meadow-secure-session" in kept["query.secure_confirm"]
    assert kept["query.secure_unmask"] == {"meadow-secure-past", "meadow-secure-introduction"}
    arena.round(kind="evaluate")
    assert kept["evaluate.secure"] > {"meadow-secure-session"}
    assert "seed" not in arena.clients.context_of(1).state["meadow-secure-introduction"]
