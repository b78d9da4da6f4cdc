"""Private rounds through relays: a relay clips each client's update before it adds it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, Metadata, MetricRecord, RecordDict

from meadow.flower.messages import (
    identify_process,
    params_to_arrays,
    rebuild_message,
    set_message_id,
)
from meadow.privacy.dp.mechanisms.adaptive import AdaptiveClip
from meadow.privacy.dp.mechanisms.clipping import WITHIN_KEY, Clipping, ClippingKind
from meadow.privacy.dp.mechanisms.mechanism import NoisyAggregate
from meadow.privacy.dp.noise_terms import NoiseSource
from meadow.privacy.dp.plan import PrivacyPlan
from meadow.privacy.dp.private_algorithm import private_algorithm
from meadow.relay.trainer import RelayTrainer, _Answer
from meadow.server.daemon.daemon import Works
from meadow.server.worker.relayed_replies import replies_behind
from meadow.strategies.algorithms.algorithm import Aggregate, Algorithm, Params
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.rounds.plan import RoundPlan
from meadow.strategies.rounds.replies import TrainingReplies
from meadow.transport import fleet_pb2 as pb
from meadow.transport.blobs import blobs_of
from meadow.transport.codec import BlobWriter, encode
from meadow.transport.relaying import RELAY_RECORD

identify_process(run_id=1, node_id=0)
RELAY, CLIP = 7, 0.5
COHORT = 8.0
START = np.random.default_rng(0)
SENT: Params = {
    "w": START.standard_normal((40, 3)).astype(np.float32),
    "wide": START.standard_normal(9),
    "n": np.zeros(2, np.int64),
}


def algorithm(
    kind: ClippingKind = "fixed", noise: NoiseSource = "server", *, multiplier: float = 1.0
) -> Algorithm:
    """Return FedAvg with central privacy whose noise is that of one fixed seed."""
    plan = PrivacyPlan(
        noise_multiplier=multiplier,
        delta=1e-6,
        rounds=3,
        cohort=COHORT,
        population=20,
        sampling="fixed",
        noise=noise,
        clipping=Clipping(kind=kind, clip_norm=CLIP),
        adaptive=AdaptiveClip(count_noise_stddev=3.0) if kind == "adaptive" else None,
        entropy=lambda size: bytes(range(size)),
    )
    made = private_algorithm(plan, fedavg())
    return made.at(made.init(SENT))


def reply_of(client: int, content: RecordDict | Error) -> Message:
    """Return a client's reply to the training of round 1."""
    metadata = Metadata(1, f"r-{client}", client, 0, f"i-{client}", "1", 0.0, 60.0, "train")
    return rebuild_message(metadata, content)


def update(client: int, *, size: float = 0.1, **claims: float) -> Message:
    """Return a client's update of about this size; `claims` are metrics."""
    draw = np.random.default_rng(client)
    arrays = {
        name: (values + size * draw.standard_normal(values.shape)).astype(values.dtype)
        if values.dtype.kind == "f"
        else values + client
        for name, values in SENT.items()
    }
    metrics = MetricRecord({"num-examples": 1.0, WITHIN_KEY: client % 2, **claims})
    return reply_of(client, RecordDict({"arrays": params_to_arrays(arrays), "metrics": metrics}))


def behind(
    private: Algorithm, messages: Sequence[Message], asked: list[int], *, name: str = "north"
) -> list[Message]:
    """Return what the server above makes of a relay's answer."""
    terms = ConfigRecord(dict(private.client_config))
    answer = _Answer(RecordDict({"arrays": params_to_arrays(SENT), "config": terms}))
    for message in messages:
        answer.take(message)
    clipping = Clipping.by_server(terms)
    content = answer.content(asked)
    return list(replies_behind(reply_of(RELAY, content), asked, relay=name, clipping=clipping))


def released(
    private: Algorithm, cohort: Sequence[int], messages: Sequence[Message], *, tree: bool
) -> Aggregate:
    """Return what a round releases."""
    replies = TrainingReplies(
        number=1,
        cohort=cohort,
        params=SENT,
        algorithm=private,
        plan=RoundPlan(),
        quorum=0,
        combined=tree,
        reports=False,
        emit=lambda kind, detail: None,
    )
    for message in messages:
        replies.take(message)
    return replies.finish()


def norm(params: Params) -> float:
    """Return how far the floating-point tensors are from those sent."""
    moved = (params[name] - SENT[name] for name in ("w", "wide"))
    return float(np.sqrt(sum(float((delta.astype(float) ** 2).sum()) for delta in moved)))


def require_equal(found: Aggregate, expected: Aggregate) -> None:
    """Check that releases are the same, within the rounding of float64 before the noise."""
    assert found.clients == expected.clients and found.weight == expected.weight
    for name, values in expected.mean.items():
        assert found.mean[name].dtype == values.dtype
        np.testing.assert_allclose(found.mean[name], values, rtol=1e-13, atol=1e-14)
    np.testing.assert_array_equal(found.mean["w"], expected.mean["w"])
    assert isinstance(found, NoisyAggregate) and isinstance(expected, NoisyAggregate)
    assert found.within == expected.within


@pytest.mark.parametrize("kind", ["fixed", "per_layer", "adaptive"])
def test_a_tree_releases_what_one_server_does(kind: ClippingKind) -> None:
    """Relays, one below another, a client of the server's own, clipped and unclipped updates, and one
    below that has failed: the same noise on the same sum, the same noisy count."""
    private = algorithm(kind)
    sizes = {client: 0.4 if client % 3 else 0.01 for client in range(1, 12)}
    made = {client: partial(update, client, size=size) for client, size in sizes.items()}
    failed = reply_of(8, Error(1, "x"))
    flat = [failed if c == 8 else make() for c, make in made.items()]
    expected = released(private, list(sizes), flat, tree=False)
    low = behind(private, [made[c]() for c in (5, 6, 7)], [5, 6, 7], name="low")
    messages = [
        made[11](),
        *behind(private, [*low, made[4]()], [4, 5, 6, 7]),
        *behind(private, [made[c]() for c in (1, 2, 3)], [1, 2, 3]),
        *behind(private, [failed, made[9](), made[10]()], [8, 9, 10]),
    ]
    require_equal(released(private, list(sizes), messages, tree=True), expected)
    require_equal(released(private, list(sizes), messages[::-1], tree=True), expected)


@pytest.mark.parametrize("kind", ["fixed", "per_layer", "adaptive"])
@pytest.mark.parametrize(
    "lie",
    [
        {"size": 1e6},
        {"num-examples": 1e9},
        {WITHIN_KEY: 1e6},
        {WITHIN_KEY: -1e6},
        {"size": 1e30, "num-examples": 1e-9, "loss": 1e200},
    ],
)
def test_a_client_below_cannot_exceed_the_clip(kind: ClippingKind, lie: dict[str, float]) -> None:
    """Whatever one of a relay's clients sends, it moves the release by at most the clip, and the
    count of clients within it by at most half a client."""
    private = algorithm(kind, multiplier=1e-9 if kind != "adaptive" else 1.0)
    honest = [update(client) for client in (1, 2)]
    liar = update(3, **lie)  # type: ignore[arg-type]
    cohort = [1, 2, 3]
    without = released(private, cohort, behind(private, honest, cohort), tree=True)
    beside = released(private, cohort, behind(private, [*honest, liar], cohort), tree=True)
    moved = {n: SENT[n] + (beside.mean[n] - without.mean[n]) for n in SENT}
    assert norm(moved) * COHORT <= CLIP * (1 + 1e-5)
    assert isinstance(beside, NoisyAggregate) and isinstance(without, NoisyAggregate)
    if kind == "adaptive":
        assert beside.within is not None and without.within is not None
        assert abs(beside.within - without.within) * COHORT <= 0.5 + 1e-9


def test_clients_that_say_nothing_of_the_clip_are_counted() -> None:
    """The share of clients within is one of all clients, not of those that say so."""
    private, silent = algorithm("adaptive"), update(2)
    del silent.content["metrics"][WITHIN_KEY]
    one = [update(1, **{WITHIN_KEY: 1.0}), silent, update(4)]
    flat = released(private, [1, 2, 4], one, tree=False)
    require_equal(released(private, [1, 2, 4], behind(private, one, [1, 2, 4]), tree=True), flat)


def sums_times(factor: float) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        arrays = {name: values.numpy() for name, values in content["arrays"].items()}
        arrays["w"] = arrays["w"] * factor
        content["arrays"] = params_to_arrays(arrays)

    return change


def far_rests(content: RecordDict) -> None:
    """Put large values where a relay says what its sums lack."""
    rests = {"positions": np.arange(100), "values": np.full(100, 1e9)}
    content["meadow.rest"] = params_to_arrays(rests)


@pytest.mark.parametrize("change", [sums_times(1e6), sums_times(-3.0), far_rests])
@pytest.mark.parametrize("clients", [[1], [1, 2, 3]])
def test_a_relay_moves_no_more_than_its_clients_could(
    change: Callable[[RecordDict], None], clients: list[int]
) -> None:
    """A relay can lie for its clients, and each of them counts at most with the clip."""
    private = algorithm(multiplier=1e-9)
    terms = ConfigRecord(dict(private.client_config))
    answer = _Answer(RecordDict({"arrays": params_to_arrays(SENT), "config": terms}))
    for client in clients:
        answer.take(update(client))
    content = answer.content(clients)
    change(content)
    messages = replies_behind(
        reply_of(RELAY, content), clients, relay="north", clipping=Clipping(clip_norm=CLIP)
    )
    found = released(private, clients, list(messages), tree=True)
    assert norm(found.mean) * COHORT <= CLIP * len(clients) * (1 + 1e-5)


def test_a_relay_that_does_not_clip_is_refused() -> None:
    """One of another version, which says nothing of clipping, or of another norm: nobody counts."""
    private = algorithm()
    honest = behind(private, [update(1), update(2)], [1, 2])
    assert not honest[-1].has_error()
    plain = _Answer(RecordDict({"arrays": params_to_arrays(SENT)}))
    plain.take(update(1))
    plain.take(update(2))
    content = plain.content([1, 2])
    for norm_said in (None, CLIP * 2):
        if norm_said is not None:
            content[RELAY_RECORD]["clip-norm"] = norm_said
        refused = list(
            replies_behind(
                reply_of(RELAY, content), [1, 2], relay="north", clipping=Clipping(clip_norm=CLIP)
            )
        )
        assert [message.metadata.src_node_id for message in refused] == [1, 2]
        assert all("has not clipped" in message.error.reason for message in refused)


def test_an_update_without_a_norm_is_named() -> None:
    """It would add nothing on the server; below a relay it is a failure, and says why."""
    private = algorithm()
    endless = update(1)
    arrays = {name: values.numpy() for name, values in endless.content["arrays"].items()}
    arrays["wide"] = np.full(9, 1e200)
    endless.content["arrays"] = params_to_arrays(arrays)
    error, rest = behind(private, [endless, update(2)], [1, 2])
    assert error.metadata.src_node_id == 1 and error.has_error()
    assert "not finite: it cannot be clipped" in error.error.reason
    assert rest.content["metrics"]["combined-clients"] == [2]


def test_what_clients_report_stays_below() -> None:
    """Metrics carry no noise: a relay passes none on, but for the adaptive clip's count."""
    private = algorithm()
    (found,) = behind(private, [update(1, loss=3.0), update(2, loss=4.0)], [1, 2])
    assert set(found.content["metrics"]) == {"num-examples", "combined-clients"}
    assert found.content["metrics"]["num-examples"] == 2.0


@pytest.mark.parametrize("noise", ["local_gaussian", "local_laplace"])
def test_noise_that_clients_add_is_not_cut_off(noise: NoiseSource) -> None:
    """A relay adds such updates up as they are, each once, however many examples it claims."""
    private = algorithm(noise=noise)
    messages = [update(1, size=5.0), update(2, size=9.0, **{"num-examples": 1e6}), update(3)]
    flat = released(private, [1, 2, 3], messages, tree=False)
    found = released(private, [1, 2, 3], behind(private, messages, [1, 2, 3]), tree=True)
    assert norm(flat.mean) > CLIP and found.clients == flat.clients == 3
    for name, values in flat.mean.items():
        np.testing.assert_allclose(found.mean[name], values, rtol=1e-13)


@pytest.mark.parametrize("private", [True, False])
def test_a_message_says_nothing_of_how_many_were_drawn(tmp_path: Path, private: bool) -> None:
    """Where the sample is secret, tensors come in messages or as files by the configured cohort, not by
    how many of a relay's clients were drawn."""
    content = RecordDict(
        {
            "arrays": params_to_arrays({"w": np.zeros(2000, np.float32)}),
            RELAY_RECORD: ConfigRecord({"clients": [1, 2], "deadline-s": 1.0}),
        }
    )
    asked = Message(content, RELAY, "train", group_id="1")
    set_message_id(asked, "i")
    instruction = pb.Instruction(
        id="i",
        run_id=1,
        envelope=encode(asked, BlobWriter(tmp_path)),
        cohort_clients=2000,
        differential_privacy=private,
    )
    sent: list[pb.Step] = []
    below = SimpleNamespace(
        has_relays=False,
        relay_of=lambda client: 0,
        send=lambda message: sent.append(message.step),
        next_of=lambda key: pb.StepEnd(key=key),
        close_step=lambda key: None,
    )
    works = Works(journal=None, thread=None, dispatcher=None, agents=None,  # type: ignore[arg-type]
                  spool=SimpleNamespace(outgoing=lambda run: tmp_path))  # fmt: skip
    trainer = RelayTrainer(works, secret=b"s")
    trainer._combined(instruction, below, tmp_path, tmp_path / "reply")  # type: ignore[arg-type]
    assert [len(step.envelopes) for step in sent] == [2]
    files = {bool(blobs_of(envelope)) for envelope in sent[0].envelopes}
    assert files == {private}
