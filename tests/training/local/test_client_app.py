"""`client_app(task)`: messages in, messages out, and nothing that one site leaves for another."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch import nn

import meadow
from meadow.errors import NOTHING_TO_EVALUATE, DataError, MeadowError, ProtocolError
from meadow.flower.messages import arrays_to_params

TRAIN = {"batch-size": 8, "learning-rate": 0.1, "seed": 3, "server-round": 1}


def train(kit: Any, app: Any, arrays: Any, node_id: int = 1, **config: Any) -> Any:
    message = kit.message(node_id, "train", arrays, {**TRAIN, **config})
    return app(message, kit.context(node_id)).content


def test_a_reply_has_the_trained_params_and_metrics(kit: Any) -> None:
    """Names, shapes, dtypes and order are those that came; BatchNorm's buffers are among them."""
    task = kit.task()
    arrays = kit.params(task)
    content = train(kit, meadow.client_app(task), arrays)
    before, after = arrays_to_params(arrays), arrays_to_params(content["arrays"])
    assert [(n, a.shape, a.dtype) for n, a in before.items()] == [
        (n, a.shape, a.dtype) for n, a in after.items()
    ]
    assert "1.num_batches_tracked" in after and after["1.num_batches_tracked"] == 3
    assert set(content["metrics"]) == {"num-examples", "loss", "accuracy"}
    assert content["metrics"]["num-examples"] == 23
    assert kit.bytes_in(content["arrays"]) != kit.bytes_in(arrays)


def test_a_reply_owns_its_memory(kit: Any) -> None:
    """What the warm module does later does not reach into a reply that was given."""
    task = kit.task()
    app, arrays = meadow.client_app(task), kit.params(task)
    first = train(kit, app, arrays)["arrays"]
    kept = kit.bytes_in(first)
    train(kit, app, arrays, node_id=2)
    assert kit.bytes_in(first) == kept
    assert kit.bytes_in(arrays) == kit.bytes_in(kit.params(task))


def test_sites_leave_no_trace_in_each_other(kit: Any) -> None:
    """A site's update is the same bits alone, after others, and in another process."""
    task = kit.task()
    arrays = kit.params(task)
    alone = kit.bytes_in(train(kit, meadow.client_app(task), arrays)["arrays"])
    shared = meadow.client_app(task)
    for node_id in (3, 2, 1, 2):
        train(kit, shared, arrays, node_id)
    evaluation = kit.message(1, "evaluate", arrays, {})
    shared(evaluation, kit.context(1))
    torch.rand(5)
    assert kit.bytes_in(train(kit, shared, arrays)["arrays"]) == alone


class Hidden(nn.Module):
    """A model with state that is not among its params: it counts, and it was drawn at random."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("noise", torch.rand(4), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.noise += 1
        output: torch.Tensor = self.linear(inputs * self.noise)
        return output


def test_state_beside_the_params_is_reset(kit: Any) -> None:
    """Buffers that do not travel begin each message as the run's seed built them."""
    task = kit.task(model=Hidden)
    arrays = kit.params(task, seed=3)
    app = meadow.client_app(task)
    first = kit.bytes_in(train(kit, app, arrays)["arrays"])
    torch.rand(3)
    assert kit.bytes_in(train(kit, app, arrays)["arrays"]) == first
    assert kit.bytes_in(train(kit, meadow.client_app(task), arrays)["arrays"]) == first
    assert kit.bytes_in(train(kit, app, arrays, seed=4)["arrays"]) != first


def test_data_are_loaded_once_a_site(kit: Any) -> None:
    """A site that comes again finds its data in place."""
    loaded: list[int] = []

    def load(site: meadow.Site) -> meadow.ClientData:
        loaded.append(site.index)
        return meadow.ClientData(train=kit.samples(site.index, 10))

    task = kit.task(client_data=load)
    app, arrays = meadow.client_app(task), kit.params(task)
    for node_id in (1, 2, 1, 2, 2):
        train(kit, app, arrays, node_id)
    assert loaded == [0, 1]


def test_evaluation_averages_over_the_test_data(kit: Any) -> None:
    """The reply has metrics only, and they are what the model says in evaluation mode."""
    task = kit.task()
    arrays = kit.params(task)
    message = kit.message(2, "evaluate", arrays, {"batch-size": 3})
    content = meadow.client_app(task)(message, kit.context(2)).content
    assert set(content) == {"metrics"}
    module = task.model().eval()
    module.load_state_dict(
        {n: torch.from_numpy(np.array(a)) for n, a in arrays_to_params(arrays).items()}
    )
    inputs, targets = kit.samples(101, 11)
    with torch.no_grad():
        losses = kit.cross_entropy(module(inputs), targets)
    assert content["metrics"]["loss"] == pytest.approx(float(losses.mean()), rel=1e-6)
    assert content["metrics"]["num-examples"] == 11


@pytest.mark.parametrize("how", ["fine", "empty", "not finite", "no finite change"])
@pytest.mark.parametrize("source", ["local_gaussian", "local_laplace", "distributed", "server"])
def test_who_learned_nothing_answers_like_anybody(kit: Any, how: str, source: str) -> None:
    """Where clients add the noise, whether data are empty or broken does not leave either."""
    inputs, targets = kit.samples(0, 0 if how == "empty" else 10)
    if how == "not finite":
        inputs = inputs * torch.nan
    elif how == "no finite change":
        inputs = inputs * 1e30
    data = meadow.ClientData(train=(inputs, targets))
    task = kit.task(model=lambda: torch.nn.Linear(4, 2), client_data=lambda site: data)
    app, arrays = meadow.client_app(task), kit.params(task)
    noise = {"dp-noise-multiplier": 1.0, "dp-noise": source}
    terms = {"dp-clip-norm": 1e-3, "dp-clipping": "fixed", **noise}
    if source == "server" and how in ("empty", "not finite"):
        with pytest.raises(MeadowError):
            train(kit, app, arrays, **terms)
        return
    if source != "server" or how == "fine":
        content = train(kit, app, arrays, **terms)
        assert dict(content.metric_records["metrics"]) == {"num-examples": 1}
        for name, values in arrays_to_params(content.array_records["arrays"]).items():
            moved = np.abs(values - arrays_to_params(arrays)[name])
            assert moved.max() < 0.1


def test_a_query_counts_samples(kit: Any) -> None:
    """How much there is to learn from can be asked without a model."""
    reply = meadow.client_app(kit.task())(kit.message(1, "query"), kit.context(1))
    assert dict(reply.content["metrics"]) == {"num-examples": 23, "num-test-examples": 11}


def test_a_site_is_known_by_flowers_names_too(kit: Any) -> None:
    """Under Flower's own simulation a node has a partition-id; free keys reach the task."""
    seen: list[meadow.Site] = []

    def load(site: meadow.Site) -> meadow.ClientData:
        seen.append(site)
        return meadow.ClientData(train=kit.samples(0, 5))

    node = {"partition-id": 2, "num-partitions": 5, "path": "/data"}
    run = {"partition": "dirichlet", "partition-alpha": 0.1, "partition-seed": 9}
    context = Context(run_id=1, node_id=777, node_config=node, state=RecordDict(), run_config=run)
    meadow.client_app(kit.task(client_data=load))(kit.message(777, "query"), context)
    (site,) = seen
    assert (site.index, site.count, dict(site.config)) == (2, 5, {"path": "/data"})
    assert (site.partition.kind, site.partition.alpha, site.seed) == ("dirichlet", 0.1, 9)


@pytest.mark.parametrize("node", [{}, {"site-index": 4}, {"site-index": 4, "site-count": 4}])
def test_a_context_without_a_site_is_refused(kit: Any, node: dict[str, Any]) -> None:
    """A client that does not know which site it is says how to tell it."""
    context = Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config={})
    with pytest.raises(ProtocolError, match=r"is no site; set data\.index"):
        meadow.client_app(kit.task())(kit.message(1, "query"), context)


def test_wrong_instructions_and_tasks_are_refused(kit: Any) -> None:
    """Another model's params, no params and wrong data each have their sentence."""
    task = kit.task()
    app, arrays = meadow.client_app(task), kit.params(task)
    other = kit.params(kit.task(model=lambda: nn.Linear(4, 3)))
    with pytest.raises(ProtocolError, match="the params are not this model's"):
        train(kit, app, other)
    with pytest.raises(ProtocolError, match="must carry one ArrayRecord, got 0"):
        app(kit.message(1, "train", None, TRAIN), kit.context(1))
    with pytest.raises(DataError, match=r"must return a meadow.ClientData, got a tuple"):
        wrong = kit.task(client_data=lambda site: kit.samples(0, 4))
        train(kit, meadow.client_app(wrong), arrays)


@pytest.mark.parametrize("test", [None, (torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))])
def test_a_site_without_test_data_has_nothing_to_evaluate(kit: Any, test: Any) -> None:
    """It answers so by the code that Meadow's strategy passes over, and does not raise."""
    bare = kit.task(client_data=lambda s: meadow.ClientData(train=kit.samples(0, 4), test=test))
    message = kit.message(1, "evaluate", kit.params(bare))
    reply = meadow.client_app(bare)(message, kit.context(1))
    assert reply.has_error() and reply.error.code == NOTHING_TO_EVALUATE
    assert reply.error.reason == "site 0 has no test data"


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from conftest import *
kit = Kit
identify_process(run_id=1, node_id=0)
task = make_task()
message = message_to(1, "train", first_params(task), {config!r})
reply = meadow.client_app(task)(message, context_of(1)).content
import hashlib
parts = bytes_in(reply["arrays"])
print(hashlib.sha256(b"".join(parts[name] for name in sorted(parts))).hexdigest())
"""


def test_another_process_gives_the_same_bits(kit: Any, request: pytest.FixtureRequest) -> None:
    """A fresh interpreter trains to the very params that this one does."""
    import hashlib

    task = kit.task()
    parts = kit.bytes_in(train(kit, meadow.client_app(task), copy.copy(kit.params(task)))["arrays"])
    here = hashlib.sha256(b"".join(parts[name] for name in sorted(parts))).hexdigest()
    program = PROGRAM.format(folder=str(request.path.parents[1]), config=TRAIN)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == here
