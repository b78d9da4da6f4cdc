"""Replies that nobody should send: each is refused by name, and the round goes on without it."""

from __future__ import annotations

import io
import pickle

import ml_dtypes
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from meadow.errors import NOTHING_TO_EVALUATE, QuorumError
from meadow.flower.messages import arrays_to_params, params_to_arrays
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan

BAD = 2


class Bomb:
    """Anything that unpickles this fails the test."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def start(kit, spoil, *, nodes=range(1, 5), order=None, **plan):
    """Run one round in which client 2's reply is spoiled; return the recorder and the result."""

    def client(message):
        reply = kit.drift(message)
        if message.metadata.dst_node_id == BAD and message.metadata.message_type == "train":
            return spoil(reply)
        return reply

    recorder = kit.Recorder()
    strategy = FederatedStrategy(fedavg(), RoundPlan(**plan), recorder=recorder)
    arrays = params_to_arrays(kit.model())
    return recorder, strategy.start(kit.Grid(client, nodes, order), arrays, num_rounds=1)


def without(kit):
    """What the round gives when client 2 does not answer at all."""
    return start(kit, lambda reply: None)[1]


def check_refused(kit, spoil, field, reason):
    recorder, result = start(kit, spoil)
    (event,) = recorder.heard("update_refused")
    assert (event["round"], event["client"], event["field"]) == (1, BAD, field)
    assert reason in event["reason"]
    assert "\n" not in event["reason"]
    assert kit.bytes_of(arrays_to_params(result.arrays)) == kit.bytes_of(
        arrays_to_params(without(kit).arrays)
    )
    assert (recorder.rows[0]["clients"], recorder.rows[0]["failures"]) == (3, 1)


def with_arrays(change):
    """Spoil the arrays: `change` gets the params as a dict, and returns what is sent instead."""

    def spoil(reply):
        sent = change(dict(arrays_to_params(reply["arrays"])))
        arrays = {
            name: value if isinstance(value, Array) else Array(np.asarray(value))
            for name, value in sent.items()
        }
        return RecordDict({"arrays": ArrayRecord(arrays), "metrics": reply["metrics"]})

    return spoil


def replaced(name, value):
    return with_arrays(lambda params: params | {name: value(params[name])})


def npy(values):
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=True)
    return buffer.getvalue()


def poisoned(values, poison):
    values = np.array(values)
    values.reshape(-1)[-1] = poison
    return values


def raw(dtype, shape, stype, data):
    return lambda _: Array(dtype=dtype, shape=shape, stype=stype, data=data)


HUGE_HEADER = (
    b"\x93NUMPY\x01\x00\x76\x00"
    + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117)
    + b"\n"
)

ARRAYS = {
    "NaN": (replaced("weight", lambda v: poisoned(v, np.nan)), "tensor 'weight'", "not finite"),
    "Inf": (replaced("bias", lambda v: poisoned(v, np.inf)), "tensor 'bias'", "not finite"),
    "-Inf scalar": (replaced("scale", lambda v: np.float32(-np.inf)), "tensor 'scale'", "finite"),
    "shape": (replaced("weight", lambda v: v.T.copy()), "tensor 'weight'", "(3, 4)"),
    "flat": (replaced("weight", lambda v: v.reshape(-1)), "tensor 'weight'", "(3, 4)"),
    "dtype": (replaced("bias", lambda v: v.astype(np.float64)), "tensor 'bias'", "float32"),
    "strings": (replaced("bias", lambda v: np.array(["a"] * 4)), "tensor 'bias'", "float32"),
    "missing": (
        with_arrays(lambda p: {k: v for k, v in p.items() if k != "bias"}),
        "tensor 'bias'",
        "missing",
    ),
    "extra": (
        with_arrays(lambda p: p | {"more": np.zeros(2, np.float32)}),
        "tensor 'more'",
        "not one of the model's",
    ),
    "renamed": (
        with_arrays(lambda p: {("Bias" if k == "bias" else k): v for k, v in p.items()}),
        "tensor 'bias'",
        "missing",
    ),
    "nothing": (with_arrays(lambda p: {}), "tensor 'bias'", "missing"),
    "pickle": (
        replaced("bias", raw("float32", (4,), "numpy.ndarray", pickle.dumps(Bomb()))),
        "arrays",
        "cannot be read",
    ),
    "object npy": (
        replaced("bias", raw("float32", (4,), "numpy.ndarray", npy(np.array([Bomb()] * 4)))),
        "arrays",
        "cannot be read",
    ),
    "torch": (
        replaced("bias", raw("float32", (4,), "torch.Tensor", b"PK\x03\x04")),
        "tensor 'bias'",
        "must be 'numpy.ndarray', is 'torch.Tensor'",
    ),
    "lying shape": (
        replaced("bias", raw("float32", (4,), "numpy.ndarray", npy(np.zeros(5, np.float32)))),
        "tensor 'bias'",
        "must be float32 (4,), is float32 (5,)",
    ),
    "lying dtype": (
        replaced("bias", raw("float32", (4,), "numpy.ndarray", npy(np.zeros(4, np.float64)))),
        "tensor 'bias'",
        "is float64",
    ),
    "lying length": (
        replaced("bias", raw("float32", (4,), "numpy.ndarray", HUGE_HEADER)),
        "arrays",
        "cannot be read",
    ),
    "too many bytes": (
        replaced("bias", raw("float32", (4,), "numpy.ndarray", bytes(1_000_000))),
        "tensor 'bias'",
        "1000000 bytes",
    ),
    "truncated": (
        replaced("bias", raw("float32", (4,), "numpy.ndarray", npy(np.zeros(4, "f4"))[:-1])),
        "arrays",
        "cannot be read",
    ),
    "empty bytes": (
        replaced("bias", raw("float32", (4,), "numpy.ndarray", b"")),
        "arrays",
        "cannot be read",
    ),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_bad_arrays_are_refused(kit, case):
    """Cases 12 to 14: pickles, values that are not finite, wrong names, shapes and dtypes."""
    check_refused(kit, *ARRAYS[case])


def with_examples(value):
    def spoil(reply):
        metrics = MetricRecord({"loss": 1.0})
        if value is not None:  # past MetricRecord's own check: bytes from a wire have none
            metrics.__dict__["_data"]["num-examples"] = value
        return RecordDict({"arrays": reply["arrays"], "metrics": metrics})

    return spoil


@pytest.mark.parametrize(
    "value",
    [0, -1, 0.0, -0.5, float("nan"), float("inf"), 10**18, 1e18, 10**400, True, [10], "10", None],
    ids=repr,
)
def test_bad_numbers_of_examples_are_refused(kit, value):
    """Case 16: never silently 1."""
    reason = "is missing" if value is None else "must be a number > 0 and <= 1e+09, got "
    check_refused(kit, with_examples(value), "num-examples", reason)


@pytest.mark.parametrize(
    "kinds",
    [("metrics",), ("arrays",), (), ("arrays", "metrics", "more"), ("arrays", "metrics", "again")],
    ids=str,
)
def test_replies_with_the_wrong_records_are_refused(kit, kinds):
    """A reply has exactly one record of arrays and one of metrics; configs are ignored."""

    def spoil(reply):
        records = {
            "arrays": reply["arrays"],
            "metrics": reply["metrics"],
            "more": reply["metrics"],
            "again": reply["arrays"],
        }
        chosen = {kind: records[kind] for kind in kinds}
        return RecordDict({**chosen, "config": ConfigRecord({"a": 1})})

    check_refused(kit, spoil, "content", "must have one")


def test_too_many_metrics_are_refused(kit):
    """What a client reports is bounded too."""

    def spoil(reply):
        metrics = MetricRecord({"num-examples": 1} | {f"m{i}": 1.0 for i in range(300)})
        return RecordDict({"arrays": reply["arrays"], "metrics": metrics})

    check_refused(kit, spoil, "metrics", "at most 256")


def test_metrics_that_are_not_finite_do_not_spoil_the_mean(kit):
    """A diverged loss is left out, lists are ignored, and the update itself counts."""

    def spoil(reply):
        metrics = MetricRecord(
            {"num-examples": 20, "loss": float("nan"), "accuracy": 10**300, "curve": [1.0, 2.0]}
        )
        return RecordDict({"arrays": reply["arrays"], "metrics": metrics})

    recorder, _ = start(kit, spoil)
    assert recorder.rows[0]["clients"] == 4
    assert recorder.rows[0]["train"] == {"accuracy": 1.0, "loss": (10 * 1 + 90 + 160) / 80}


def far(reply):
    params = {
        name: np.asarray(values * np.float32(1e6))
        for name, values in arrays_to_params(reply["arrays"]).items()
    }
    return RecordDict({"arrays": params_to_arrays(params), "metrics": reply["metrics"]})


def test_an_update_beyond_the_norm_is_rejected(kit):
    """Case 15, policy "reject": norm x 1e6."""
    recorder, result = start(kit, far, update_norm_max=20.0)
    (event,) = recorder.heard("update_refused")
    assert (event["client"], event["field"]) == (BAD, "update")
    assert "norm must be <= 20, is " in event["reason"]
    assert kit.bytes_of(arrays_to_params(result.arrays)) == kit.bytes_of(
        arrays_to_params(without(kit).arrays)
    )


def test_an_update_beyond_the_norm_is_clipped(kit):
    """Case 15, policy "clip": its direction stays, its length is the limit, and it is told."""
    recorder, result = start(kit, far, update_norm_max=20.0, update_norm_policy="clip")
    (event,) = recorder.heard("update_clipped")
    assert (event["client"], event["norm_max"]) == (BAD, 20.0)
    assert event["norm"] > 1e6
    assert recorder.rows[0]["clients"] == 4
    before, after = kit.model(), arrays_to_params(result.arrays)
    change = sum(float(np.square(after[name] - before[name]).sum()) for name in before)
    assert change**0.5 <= 20.0


def test_errors_are_failures_with_their_reason(kit):
    """A client that says why it failed is quoted, on one line of bounded length."""
    recorder, _ = start(
        kit, lambda reply: Error(code=0, reason="out of\nmemory \x1b[31m" + "x" * 999)
    )
    (event,) = recorder.heard("client_failed")
    assert event["client"] == BAD
    assert event["reason"].startswith("out of memory ?[31mxxx")
    assert len(event["reason"]) <= 300


def test_a_client_without_an_answer_is_a_failure(kit):
    """Who has not answered when the replies end is named."""
    recorder, _ = start(kit, lambda reply: None, deadline_s=5.0)
    (event,) = recorder.heard("client_failed")
    assert event == {"round": 1, "client": BAD, "reason": "no answer within 5 s"}


def test_an_answer_counts_once(kit):
    """A 2 in the sum would prove that a repeated reply was counted twice."""

    def one_hot(message):
        params = {
            "w": np.eye(4, dtype=np.float32)[message.metadata.dst_node_id - 1],
        }
        metrics = MetricRecord({"num-examples": 1})
        return RecordDict({"arrays": params_to_arrays(params), "metrics": metrics})

    recorder = kit.Recorder()
    plan = RoundPlan(evaluate_every=0)
    strategy = FederatedStrategy(fedavg(), plan, recorder=recorder)
    grid = kit.Grid(one_hot, range(1, 5), lambda replies: [*replies, *replies[1:2]])
    zeros = params_to_arrays({"w": np.zeros(4, np.float32)})
    result = strategy.start(grid, zeros, num_rounds=1)
    assert (result.arrays["w"].numpy() * 4).tolist() == [1, 1, 1, 1]
    (event,) = recorder.heard("update_refused")
    assert "has come before" in event["reason"]
    assert recorder.rows[0]["failures"] == 0


def test_strangers_and_late_replies_do_not_count(kit):
    """A reply from a client that was not asked, or to another round, is refused."""
    late = {}

    def order(replies):
        for reply in replies:
            late.setdefault(reply.metadata.src_node_id, reply)
        stranger = Message(
            replies[0].content,
            reply_to=Message(RecordDict(), 99, "train", group_id="1"),
        )
        return [late[1], stranger, *replies[1:]]

    recorder = kit.Recorder()
    strategy = FederatedStrategy(fedavg(), RoundPlan(evaluate_every=0), recorder=recorder)
    grid = kit.Grid(kit.drift, range(1, 5), order)
    strategy.start(grid, params_to_arrays(kit.model()), num_rounds=2)
    reasons = [(e["round"], e["client"], e["reason"]) for e in recorder.heard("update_refused")]
    assert reasons == [
        (1, 99, "comes from a client that was not asked"),
        (2, 1, "belongs to round '1', not 2"),
        (2, 99, "comes from a client that was not asked"),
    ]
    assert [row["clients"] for row in recorder.rows] == [4, 3]


def test_too_few_valid_updates_end_the_run_with_the_causes(kit):
    """The error names round, quorum, and who failed why; nothing is committed."""
    recorder = kit.Recorder()
    strategy = FederatedStrategy(fedavg(), RoundPlan(min_clients=3), recorder=recorder)

    def client(message):
        if message.metadata.dst_node_id == 2:
            return Error(code=0, reason="disk full")
        return kit.drift(message) if message.metadata.dst_node_id == 1 else None

    sentence = (
        r"round 1: quorum not met: 1 of 3 updates \(client 2: disk full; "
        r"client 3: no answer within 600 s\)"
    )
    with pytest.raises(QuorumError, match=sentence):
        strategy.start(kit.Grid(client, [1, 2, 3]), params_to_arrays(kit.model()))
    assert recorder.checkpoints == []


def test_bad_evaluations_are_refused(kit):
    """An evaluation's reply is checked like any other; the mean is over the rest."""

    def client(message):
        reply = kit.drift(message)
        if message.metadata.message_type == "evaluate" and message.metadata.dst_node_id == BAD:
            return RecordDict({"metrics": MetricRecord({"num-examples": 0, "loss": 1e9})})
        return reply

    recorder = kit.Recorder()
    strategy = FederatedStrategy(fedavg(), RoundPlan(), recorder=recorder)
    strategy.start(kit.Grid(client, [1, 2, 3]), params_to_arrays(kit.model()), num_rounds=1)
    (event,) = recorder.heard("evaluation_refused")
    assert (event["client"], event["field"]) == (BAD, "num-examples")
    assert recorder.rows[0]["evaluate"]["loss"] == (10 * 1 + 30 * 3) / 40


@pytest.mark.parametrize("answer", ["error", "nothing", "malformed"])
def test_failed_evaluations_count(kit, answer):
    """Whoever trained and did not evaluate is a failure of the round, told once; its update
    counts."""

    def client(message):
        asked = message.metadata
        if asked.message_type != "evaluate" or asked.dst_node_id != BAD:
            return kit.drift(message)
        said = {"error": Error(2, "KeyError: 'age' (task.py, line 3)"), "nothing": None}
        return said.get(answer, RecordDict())

    recorder = kit.Recorder()
    strategy = FederatedStrategy(fedavg(), RoundPlan(), recorder=recorder)
    strategy.start(kit.Grid(client, [1, 2, 3]), params_to_arrays(kit.model()), num_rounds=1)
    assert (recorder.rows[0]["clients"], recorder.rows[0]["failures"]) == (3, 1)
    told = recorder.heard("client_failed") + recorder.heard("evaluation_refused")
    (event,) = told
    assert event["client"] == BAD
    if answer == "error":
        assert event == {
            "round": 1,
            "client": BAD,
            "reason": "KeyError: 'age' (task.py, line 3)",
            "during": "evaluate",
            "fault": "raised",
        }


def test_a_quorum_names_sites(kit):
    """Where the grid knows names, the cause of a failed run has them, not numbers."""

    class Named(kit.Grid):
        def name_of(self, client):
            return {1: "hospital-a", 2: "hospital-b"}.get(client)

    def client(message):
        return Error(code=0, reason="disk full")

    with pytest.raises(QuorumError, match=r"\(hospital-a, hospital-b, client 3: disk full\)"):
        FederatedStrategy(fedavg(), RoundPlan(min_clients=3)).start(
            Named(client, [1, 2, 3]), params_to_arrays(kit.model())
        )


def test_a_client_without_test_data_is_passed_over(kit):
    """Its reply is no failure: nothing is told, and the mean is over the others."""

    def client(message):
        asked = message.metadata
        if asked.message_type == "evaluate" and asked.dst_node_id == BAD:
            return Error(NOTHING_TO_EVALUATE, "no test data")
        return kit.drift(message)

    recorder = kit.Recorder()
    strategy = FederatedStrategy(fedavg(), RoundPlan(), recorder=recorder)
    strategy.start(kit.Grid(client, [1, 2, 3]), params_to_arrays(kit.model()), num_rounds=1)
    assert recorder.heard("evaluation_refused") == []
    assert recorder.rows[0]["evaluate"]["loss"] == (10 * 1 + 30 * 3) / 40


def test_small_floats_are_checked_too(kit):
    """bfloat16 has NaN as well."""

    def client(message):
        reply = kit.drift(message)
        if message.metadata.dst_node_id == BAD and "arrays" in reply:
            params = dict(arrays_to_params(reply["arrays"]))
            params["bias"] = poisoned(params["bias"], np.nan)
            reply["arrays"] = params_to_arrays(params)
        return reply

    recorder = kit.Recorder()
    strategy = FederatedStrategy(fedavg(), RoundPlan(), recorder=recorder)
    arrays = params_to_arrays(kit.model(ml_dtypes.bfloat16))
    strategy.start(kit.Grid(client, [1, 2, 3]), arrays, num_rounds=1)
    (event,) = recorder.heard("update_refused")
    assert (event["client"], event["field"]) == (BAD, "tensor 'bias'")
