"""Models of trees put together: as Flower does it, and never of bytes that are no model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedXgbBagging

from meadow.errors import RunError
from meadow.flower.messages import MemoryTensor, arrays_to_params, params_to_arrays
from meadow.strategies.algorithms.algorithm import Update
from meadow.strategies.algorithms.boosted_trees import TREES, xgb_bagging, xgb_cyclic
from meadow.strategies.algorithms.tree_models import bagged
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan


def model(*leaves: float, outputs: int = 1) -> bytes:
    """Return the JSON of a model with a tree of one leaf for each of these, as XGBoost has it."""
    trees = [
        {"id": i, "left_children": [-1], "right_children": [-1], "split_conditions": [leaf]}
        for i, leaf in enumerate(leaves)
    ]
    rounds = len(leaves) // outputs
    return json.dumps(
        {
            "learner": {
                "gradient_booster": {
                    "model": {
                        "gbtree_model_param": {
                            "num_trees": str(len(leaves)),
                            "num_parallel_tree": "1",
                        },
                        "trees": trees,
                        "tree_info": [i % outputs for i in range(len(leaves))],
                        "iteration_indptr": [outputs * i for i in range(rounds + 1)],
                    }
                }
            }
        }
    ).encode()


def leaves_of(raw: bytes) -> list[float]:
    found = json.loads(raw)["learner"]["gradient_booster"]["model"]
    assert int(found["gbtree_model_param"]["num_trees"]) == len(found["trees"])
    assert found["iteration_indptr"][-1] == len(found["trees"])
    assert [tree["id"] for tree in found["trees"]] == list(range(len(found["trees"])))
    return [tree["split_conditions"][0] for tree in found["trees"]]


def row(raw: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(raw, np.uint8)


@pytest.mark.parametrize("before", [b"", model(0.5, 0.25)])
def test_bagging_is_flowers(before: bytes) -> None:
    """From the same replies the bytes are those of FedXgbBagging, with a model before or without."""
    after = [model(1.0), model(2.0), model(3.0)]
    flower = FedXgbBagging()
    flower.current_bst = before
    replies = []
    for client, raw in enumerate(after, 1):
        metrics = MetricRecord({"num-examples": 10})
        content = RecordDict({"arrays": params_to_arrays({"0": row(raw)}), "metrics": metrics})
        asked = Message(RecordDict(), dst_node_id=client, message_type="train")
        replies.append(Message(content, reply_to=asked))
    arrays, _ = flower.aggregate_train(1, replies)
    assert arrays is not None
    assert bagged(before, after) == arrays["0"].numpy().tobytes()
    assert leaves_of(bagged(before, after))[-3:] == [1.0, 2.0, 3.0]


def test_all_classes_trees_are_kept() -> None:
    """A client's boosting round of several outputs is added whole, each tree with its class."""
    joined = bagged(model(1.0, 2.0, outputs=2), [model(3.0, 4.0, outputs=2)])
    assert leaves_of(joined) == [1.0, 2.0, 3.0, 4.0]
    found = json.loads(joined)["learner"]["gradient_booster"]["model"]
    assert found["tree_info"] == [0, 1, 0, 1] and found["iteration_indptr"] == [0, 2, 4]


def test_a_cyclic_model_is_the_last_clients() -> None:
    """One reply is taken as it is; two are refused."""
    aggregator = xgb_cyclic().aggregator
    one = Update(client=1, params={TREES: MemoryTensor(row(model(1.0)))}, weight=1.0)
    zero = aggregator.zero({TREES: np.zeros(0, np.uint8)})
    done = aggregator.finish(aggregator.fold(zero, [one]))
    assert done.mean[TREES].tobytes() == model(1.0)
    zero = aggregator.zero({TREES: np.zeros(0, np.uint8)})
    with pytest.raises(RunError, match=r"run\.cohort = 1"):
        aggregator.finish(aggregator.fold(zero, [one, one]))


CYCLE = json.loads(model(1.0))
CYCLE["learner"]["gradient_booster"]["model"]["trees"][0]["left_children"] = [0]
BAD = {
    "no JSON": b"\x80\x04pickle",
    "another JSON": b"[1, 2]",
    "deep JSON": b"[" * 100_000,
    "no trees": model(),
    "no finite leaf": model(float("nan")),
    "a node that is its own child": json.dumps(CYCLE).encode(),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_bytes_that_are_no_model_are_refused(kit: Any, bad: bytes) -> None:
    """A client's nonsense is told and left out; the round goes on with the others."""

    def client(message: Message) -> RecordDict:
        raw = bad if message.metadata.dst_node_id == 2 else model(1.0)
        metrics = MetricRecord({"num-examples": 10})
        return RecordDict({"arrays": params_to_arrays({TREES: row(raw)}), "metrics": metrics})

    plan = RoundPlan(min_clients=2, evaluate_every=0)
    grid = kit.Grid(client, [1, 2, 3])
    strategy = FederatedStrategy(xgb_bagging(), plan)
    result = strategy.start(grid, params_to_arrays({}), num_rounds=1)
    assert leaves_of(arrays_to_params(result.arrays)[TREES].tobytes()) == [1.0, 1.0]


def test_the_order_of_arrival_changes_no_byte(kit: Any) -> None:
    """Trees come in the order of the clients, whoever answers first."""

    def client(message: Message) -> RecordDict:
        raw = model(float(message.metadata.dst_node_id))
        metrics = MetricRecord({"num-examples": 10})
        return RecordDict({"arrays": params_to_arrays({TREES: row(raw)}), "metrics": metrics})

    models = []
    for order in (None, lambda replies: replies[::-1]):
        strategy = FederatedStrategy(xgb_bagging(), RoundPlan(evaluate_every=0))
        grid = kit.Grid(client, [1, 2, 3], order)
        result = strategy.start(grid, params_to_arrays({}), num_rounds=2)
        models.append(arrays_to_params(result.arrays)[TREES].tobytes())
    assert models[0] == models[1]
    assert leaves_of(models[0]) == [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]
