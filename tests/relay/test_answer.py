"""What a relay answers: exact sums of what the clients below it sent, and who has failed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, Metadata, MetricRecord, RecordDict

from meadow.flower.messages import identify_process, params_to_arrays, rebuild_message
from meadow.relay.below import Below
from meadow.relay.trainer import REASON_CHARS_MAX, _Answer
from meadow.server.daemon.agent_registry import AgentRegistry
from meadow.server.daemon.steps import updates_in
from meadow.server.worker.relayed_replies import replies_behind, reply_of_one
from meadow.strategies.algorithms.algorithm import Update
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.algorithms.mean import MeanAggregator
from meadow.strategies.rounds.checks import ReplyError, read_reply
from meadow.strategies.rounds.plan import RoundPlan
from meadow.strategies.rounds.relayed import update_of
from meadow.strategies.rounds.replies import TrainingReplies
from meadow.transport import fleet_pb2 as pb
from meadow.transport.relaying import RELAY_RECORD, REST_RECORD

identify_process(run_id=1, node_id=0)
RELAY = 7
SENT = {"w": np.zeros((40, 3), np.float32), "n": np.zeros(2, np.int64)}


def reply_of(client: int, content: RecordDict | Error, group: str = "1") -> Message:
    """Return a client's reply to the training of round 1."""
    metadata = Metadata(1, f"r-{client}", client, 0, f"i-{client}", group, 0.0, 60.0, "train")
    return rebuild_message(metadata, content)


def update(client: int, weight: float) -> Message:
    """Return an update with values of very different sizes."""
    generator = np.random.default_rng(client)
    sizes = 10.0 ** generator.integers(-9, 9, SENT["w"].shape)
    arrays = {
        "w": np.float32(generator.standard_normal(SENT["w"].shape) * sizes),
        "n": generator.integers(0, 99, 2),
    }
    metrics = MetricRecord({"num-examples": weight, "loss": float(client)})
    return reply_of(client, RecordDict({"arrays": params_to_arrays(arrays), "metrics": metrics}))


def combined(clients: list[int], weights: dict[int, float], asked: list[int]) -> Message:
    """Return a relay's reply for these clients."""
    answer = _Answer(RecordDict({"arrays": params_to_arrays(SENT)}))
    for client in clients:
        answer.take(update(client, weights[client]))
    return reply_of(RELAY, answer.content(asked))


def mean_of(cohort: list[int], messages: list[Message], *, together: bool) -> dict[str, bytes]:
    """Return the bits of a round's mean."""
    replies = TrainingReplies(
        number=1,
        cohort=cohort,
        params=SENT,
        algorithm=fedavg(),
        plan=RoundPlan(),
        quorum=len(cohort),
        combined=together,
        emit=lambda kind, detail: None,
    )
    for message in messages:
        replies.take(message)
    found = replies.finish()
    assert found.clients == len(cohort)
    return {name: values.tobytes() for name, values in found.mean.items()}


@pytest.mark.parametrize("whole", [True, False])
def test_a_tree_gives_the_bits_of_all_updates(whole: bool) -> None:
    """Two relays, one of which has another one below it, and a client of the server's own."""
    weights = {client: float(3 * client + 1) / (1 if whole else 7) for client in range(1, 12)}
    flat = mean_of(list(weights), [update(c, w) for c, w in weights.items()], together=False)
    low = replies_behind(combined([5, 6, 7], weights, [5, 6, 7]), [5, 6, 7], relay="low")
    answer = _Answer(RecordDict({"arrays": params_to_arrays(SENT)}))
    for message in (*low, update(4, weights[4])):
        answer.take(message)
    high = reply_of(RELAY, answer.content([4, 5, 6, 7]))
    messages = [
        update(11, weights[11]),
        *replies_behind(high, [4, 5, 6, 7], relay="high"),
        *replies_behind(combined([1, 2, 3], weights, [1, 2, 3]), [1, 2, 3], relay="a"),
        *replies_behind(combined([8, 9, 10], weights, [8, 9, 10]), [8, 9, 10], relay="b"),
    ]
    assert mean_of(list(weights), messages, together=True) == flat
    assert mean_of(list(weights), messages[::-1], together=True) == flat


def test_sums_and_weights_are_exact() -> None:
    """What travels adds up to exactly the weighted sums, in fractions."""
    weights = {1: 0.1, 2: 1 / 3, 3: 1e-3}
    content = combined([1, 2, 3], weights, [1, 2, 3]).content
    about, rest = content[RELAY_RECORD], content[REST_RECORD]
    assert sum(map(Fraction, about["weights"])) == sum(map(Fraction, weights.values()))
    row = np.concatenate([content["arrays"][name].numpy().reshape(-1) for name in SENT])
    sums = [Fraction(value) for value in row.tolist()]
    for at, value in zip(rest["positions"].numpy(), rest["values"].numpy(), strict=True):
        sums[at] += Fraction(float(value))
    updates = {c: update(c, w).content["arrays"] for c, w in weights.items()}
    for at, found in enumerate(sums):
        values = {
            c: np.concatenate([a[n].numpy().reshape(-1).astype(float) for n in SENT])[at]
            for c, a in updates.items()
        }
        assert found == sum(Fraction(weights[c]) * Fraction(float(values[c])) for c in weights)


def test_models_of_every_dtype_go_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Complex, half-precision and boolean tensors too have the bits of one server's mean."""
    dtypes = {"c": np.complex64, "z": np.complex128, "h": np.float16, "b": np.bool_, "u": np.uint8}
    sent = {name: np.zeros((5, 2), dtype) for name, dtype in dtypes.items()}
    monkeypatch.setitem(globals(), "SENT", sent)

    def any_update(client: int) -> Message:
        draw = np.random.default_rng(client)
        values = draw.standard_normal((5, 2)) + 1j * draw.standard_normal((5, 2))
        arrays = {
            name: np.asarray(values if like.dtype.kind == "c" else abs(values.real)).astype(
                like.dtype
            )
            for name, like in sent.items()
        }
        metrics = MetricRecord({"num-examples": client})
        return reply_of(
            client, RecordDict({"arrays": params_to_arrays(arrays), "metrics": metrics})
        )

    cohort = [1, 2, 3, 4, 5]
    flat = mean_of(cohort, [any_update(client) for client in cohort], together=False)
    answer = _Answer(RecordDict({"arrays": params_to_arrays(sent)}))
    for client in cohort[:3]:
        answer.take(any_update(client))
    behind = replies_behind(reply_of(RELAY, answer.content([1, 2, 3])), [1, 2, 3], relay="north")
    tree = [*behind, any_update(4), any_update(5)]
    assert mean_of(cohort, tree, together=True) == flat


def test_a_refused_sum_is_the_failure_of_all_in_it() -> None:
    """Nobody waits for them, and each is told of with the reason."""
    reply = combined([1, 2], {1: 1.0, 2: 2.0}, [1, 2])
    wrong = params_to_arrays({"w": np.zeros(7), "n": np.zeros(2)})
    content = RecordDict({**reply.content, "arrays": wrong})
    (found,) = replies_behind(reply_of(RELAY, content), [1, 2], relay="north")
    replies = TrainingReplies(
        number=1,
        cohort=[1, 2, 3],
        params=SENT,
        algorithm=fedavg(),
        plan=RoundPlan(),
        quorum=1,
        combined=True,
        emit=lambda kind, detail: None,
    )
    replies.take(found)
    replies.take(update(3, 1.0))
    assert replies.finish().clients == 1
    assert replies.failures.keys() == {1, 2}
    assert all("tensor 'w' must be" in reason for reason in replies.failures.values())


def test_who_has_failed_is_named() -> None:
    """By its own error, by a reply that does not count, or as nothing came."""
    answer = _Answer(RecordDict({"arrays": params_to_arrays(SENT)}))
    answer.take(reply_of(1, Error(3, "x" * 1000)))
    bad = RecordDict({"arrays": params_to_arrays({"w": SENT["w"]}), "metrics": MetricRecord()})
    answer.take(reply_of(2, bad))
    answer.take(update(3, 1.0))
    messages = list(
        replies_behind(reply_of(RELAY, answer.content([1, 2, 3, 4])), [1, 2, 3, 4], relay="north")
    )
    errors = {m.metadata.src_node_id: m.error for m in messages if m.has_error()}
    assert errors.keys() == {1, 2, 4}
    assert errors[1].code == 3 and len(errors[1].reason) < REASON_CHARS_MAX + 50
    assert "behind north: num-examples is missing" in errors[2].reason
    assert "behind north: no answer in time" in errors[4].reason
    (last,) = [m for m in messages if not m.has_error()]
    assert last.content["metrics"]["combined-clients"] == [3]


def test_nobody_has_answered() -> None:
    """Then there are errors alone, and so there are when the relay itself has failed."""
    answer = _Answer(RecordDict({"arrays": params_to_arrays(SENT)}))
    nobody = list(replies_behind(reply_of(RELAY, answer.content([1, 2])), [1, 2], relay="north"))
    assert [m.metadata.src_node_id for m in nobody if m.has_error()] == [1, 2]
    broken = list(replies_behind(reply_of(RELAY, Error(2, "full disk")), [1, 2], relay="north"))
    assert [m.error.reason for m in broken] == ["behind north: full disk"] * 2


def test_evaluations_are_means_by_examples() -> None:
    """A relay's metrics are the clients' means."""
    answer = _Answer(None)
    for client, weight in ((1, 1.0), (2, 3.0)):
        metrics = MetricRecord({"num-examples": weight, "loss": float(client)})
        answer.take(reply_of(client, RecordDict({"metrics": metrics})))
    (found,) = replies_behind(reply_of(RELAY, answer.content([1, 2])), [1, 2], relay="north")
    assert dict(found.content["metrics"]) == {
        "num-examples": 4.0,
        "loss": 1.75,
        "combined-clients": [1, 2],
    }


@pytest.mark.parametrize(
    "change",
    [
        {"clients": [1, 2, 99]},
        {"clients": [1, 1]},
        {"clients": [1], "failed": [1], "codes": [1], "reasons": ["x"]},
        {"clients": "12"},
        {"failed": [2], "codes": [], "reasons": []},
        {"weights": 4},
        None,
    ],
)
def test_what_a_relay_may_not_say(change: dict[str, object] | None) -> None:
    """A reply that stands for others than were asked, or contradicts itself, counts for nobody."""
    reply = combined([1, 2], {1: 1.0, 2: 2.0}, [1, 2])
    content = RecordDict(dict(reply.content))
    if change is None:
        del content[RELAY_RECORD]
    else:
        content[RELAY_RECORD] = ConfigRecord({**content[RELAY_RECORD], **change})  # type: ignore[dict-item]
    found = list(replies_behind(reply_of(RELAY, content), [1, 2], relay="north"))
    assert [message.metadata.src_node_id for message in found] == [1, 2]
    assert all(message.has_error() for message in found)


@pytest.mark.parametrize(
    "rest",
    [
        {"positions": np.array([0, 122]), "values": np.zeros(2)},
        {"positions": np.array([-1]), "values": np.zeros(1)},
        {"positions": np.array([3, 2]), "values": np.zeros(2)},
        {"positions": np.array([1]), "values": np.array([np.inf])},
        {"positions": np.array([1]), "values": np.zeros(2)},
        {"positions": np.array([1.0]), "values": np.zeros(1)},
        {"positions": np.zeros(20, np.int64), "values": np.ones(20)},
        {"values": np.zeros(1)},
    ],
)
def test_rests_of_sums_are_checked(rest: dict[str, np.ndarray]) -> None:
    """They lie at ascending positions of the model, and are numbers."""
    reply = combined([1, 2], {1: 1.0, 2: 2.0}, [1, 2])
    content = RecordDict({**reply.content, REST_RECORD: params_to_arrays(rest)})
    (found,) = replies_behind(reply_of(RELAY, content), [1, 2], relay="north")
    read = read_reply(found, forms=None, combined=True)
    tensors = {name: content["arrays"][name].tensor for name in SENT}
    with pytest.raises(ReplyError, match="rests"):
        update_of(read, found.content["metrics"], tensors, client=1)


def test_a_mean_is_not_taken_for_a_sum() -> None:
    """A client of the server's own that sends a relay's records sends an ordinary update."""
    reply = update(1, 2.0)
    assert not update_of(
        read_reply(reply, forms=None), reply.content["metrics"], {}, client=1
    ).summed
    plain = Update(client=1, params={"w": SENT["w"]}, weight=2.0)
    assert not plain.summed and plain.rests == ()
    assert MeanAggregator().exact


def test_steps_of_two_instructions_stay_apart() -> None:
    """The second instruction of a round to evaluate is not answered by the first one's replies."""
    registry = AgentRegistry([], lease_s=1.0, clock=lambda: 0.0)
    keys = set()
    for id_ in ("1-a", "1-b"):
        sides = Below(pb.Instruction(id=id_, run_id=1), None, registry, None)  # type: ignore[arg-type]
        keys.add(sides._key_below("1/evaluate/0"))
        assert not sides.has_relays
    assert len(keys) == 2


def test_a_client_cannot_stand_for_others() -> None:
    """Where replies may be combined, only a relay's are: nobody else's closes another client's turn."""
    metrics = MetricRecord({"num-examples": 1, "combined-clients": [1, 2, 3]})
    claimed = reply_of_one(reply_of(1, RecordDict({"metrics": metrics})))
    assert claimed.has_error() and "claims to stand for other clients" in claimed.error.reason
    honest = update(1, 1.0)
    assert reply_of_one(honest) is honest
    failed = reply_of(1, Error(1, "x"))
    assert reply_of_one(failed) is failed


def test_a_quorum_counts_clients_and_no_claims() -> None:
    """A relay's reply counts for whom it was asked; any other one for one client."""

    def envelope(clients: list[int] | None) -> pb.Envelope:
        made = pb.Envelope()
        if clients is not None:
            entry = made.records.add(name=RELAY_RECORD).configs.entries.add(key="clients")
            entry.value.integers.values.extend(clients)
        return made

    assert updates_in(envelope(None), envelope([1, 2, 3])) == 1
    assert updates_in(envelope([1, 2, 3]), envelope([1, 3])) == 2
    assert updates_in(envelope([1, 2, 3]), envelope(list(range(99)))) == 3
    assert updates_in(envelope([1, 2, 3]), envelope(None)) == 0
    failed = pb.Envelope(error=pb.AppError(code=1))
    assert updates_in(envelope([1, 2, 3]), failed) == updates_in(envelope(None), failed) == 0
