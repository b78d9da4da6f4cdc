"""A run by the adapter: rounds, cohorts, evaluation, early stopping, stopping and resuming."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Result

from meadow.errors import ConfigError, QuorumError, RunError
from meadow.flower.messages import arrays_to_params, params_to_arrays
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.algorithms.fedprox import fedprox
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan
from meadow.strategies.rounds.progress import EarlyStopping


def run(kit, grid, *, algorithm=None, recorder=None, rounds=3, model=None, plan=None, **arguments):
    clock = iter(range(10**6)).__next__
    strategy = FederatedStrategy(
        algorithm or fedavg(), plan or RoundPlan(), recorder=recorder, clock=clock
    )
    arrays = params_to_arrays(model or kit.model())
    return strategy.start(grid, arrays, num_rounds=rounds, **arguments)


def test_a_round_by_hand(kit):
    """Two clients add 1 and 4 with 1 and 3 examples: the params rise by 3.25; the row says so."""

    def client(message):
        node = message.metadata.dst_node_id
        metrics = MetricRecord({"num-examples": [1, 3][node - 1], "loss": float(node)})
        if message.metadata.message_type == "evaluate":
            return RecordDict({"metrics": metrics})
        old = arrays_to_params(message.content["arrays"])["w"]
        arrays = params_to_arrays({"w": old + np.float32([1, 4][node - 1])})
        return RecordDict({"arrays": arrays, "metrics": metrics})

    recorder = kit.Recorder()
    model = {"w": np.array([0, 1, 2], np.float32)}
    result = run(kit, kit.Grid(client, [2, 1]), recorder=recorder, rounds=1, model=model)
    assert isinstance(result, Result)
    assert result.arrays["w"].numpy().tolist() == [3.25, 4.25, 5.25]
    assert recorder.rows == [
        {
            "round": 1,
            "duration_s": 1,
            "clients": 2,
            "failures": 0,
            "train": {"loss": 1.75},
            "evaluate": {"loss": 1.75},
            "server": {},
            "bytes_sent": 0,
            "bytes_received": 0,
            "privacy": None,
        }
    ]
    assert (result.status, result.cause, result.rounds) == ("finished", "", 1)
    assert result.train_metrics_clientapp == {1: {"loss": 1.75}}
    assert result.evaluate_metrics_clientapp == {1: {"loss": 1.75}}
    assert result.best["round"] == 1


def test_instructions_say_round_settings_and_objective(kit):
    """Every message of a round carries its number, the training settings and the objective."""
    grid, config = kit.Grid(kit.drift, [1, 2]), ConfigRecord({"epochs": 2})
    run(kit, grid, algorithm=fedprox(proximal_mu=0.25), rounds=2, train_config=config)
    train = [m for m in grid.sent if m.metadata.message_type == "train"]
    assert [(m.metadata.dst_node_id, m.metadata.group_id) for m in train] == [
        (1, "1"),
        (2, "1"),
        (1, "2"),
        (2, "2"),
    ]
    assert dict(train[-1].content["config"]) == {
        "epochs": 2,
        "proximal-mu": 0.25,
        "server-round": 2,
    }
    assert dict(config) == {"epochs": 2}
    evaluate = next(m for m in grid.sent if m.metadata.message_type == "evaluate")
    assert dict(evaluate.content["config"]) == {"server-round": 1}
    assert train[0].content["arrays"] is train[1].content["arrays"]


def test_the_deadline_is_the_grids_timeout(kit):
    """A round's deadline is handed to the grid, which knows how to wait."""
    grid = kit.Grid(kit.drift, [1, 2])
    run(kit, grid, plan=RoundPlan(deadline_s=7.5), rounds=1)
    run(kit, grid, plan=RoundPlan(evaluate_every=0), rounds=1, timeout=3.0)
    assert grid.timeouts == [7.5, 7.5, 3.0]


@pytest.mark.parametrize(
    ("every", "expected"), [(0, []), (1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (9, [0, 5])]
)
def test_evaluation_happens_every_so_often_and_last(kit, every, expected):
    """Federated and central evaluation keep step; the params before round 1 are central only."""
    grid, seen = kit.Grid(kit.drift, [1, 2]), []

    def central(number, arrays):
        seen.append(number)
        return MetricRecord({"loss": 1 / (number + 1)})

    plan = RoundPlan(evaluate_every=every)
    result = run(kit, grid, plan=plan, rounds=5, evaluate_fn=central)
    assert seen == expected
    assert list(result.evaluate_metrics_serverapp) == expected
    assert list(result.evaluate_metrics_clientapp) == [number for number in expected if number]


def test_only_contributors_evaluate(kit):
    """Who failed in training is not asked to evaluate: it may be gone."""
    grid = kit.Grid(lambda m: None if m.metadata.dst_node_id == 2 else kit.drift(m), [1, 2, 3])
    run(kit, grid, rounds=1)
    asked = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "evaluate"]
    assert asked == [1, 3]


def losses(kit, values):
    """A grid whose clients report these losses, one a round."""

    def client(message):
        reply = kit.drift(message)
        number = message.content["config"]["server-round"]
        reply["metrics"] = MetricRecord({"num-examples": 1, "loss": values[number - 1]})
        return reply

    return kit.Grid(client, [1, 2])


STOP = RoundPlan(early_stopping=EarlyStopping(metric="evaluate.loss", mode="min", patience=2))


def test_early_stopping_ends_a_run_that_no_longer_improves(kit):
    """Losses 3, 2, 2, nan, 1: two rounds without a better one, so it stops after round 4."""
    recorder = kit.Recorder()
    grid = losses(kit, [3.0, 2.0, 2.0, math.nan, 1.0])
    result = run(kit, grid, plan=STOP, rounds=5, recorder=recorder)
    assert (result.status, result.rounds, result.best["round"]) == ("finished", 4, 2)
    assert result.cause == (
        "evaluate.loss has not improved in 2 evaluated rounds: its best was 2 in round 2"
    )
    assert len(recorder.heard("early_stopped")) == 1
    assert math.isnan(result.evaluate_metrics_clientapp[4]["loss"])
    again = run(kit, grid, plan=STOP, rounds=5, recorder=recorder)
    assert (again.rounds, again.cause) == (4, result.cause)


def test_patience_survives_a_restart(kit):
    """A run that is interrupted every round stops at the same round."""
    recorder = kit.Recorder()
    for rounds in range(1, 6):
        grid = losses(kit, [3.0, 2.0, 2.0, 2.5, 1.0])
        result = run(kit, grid, plan=STOP, rounds=rounds, recorder=recorder)
    assert result.rounds == 4


def test_early_stopping_on_an_unknown_metric_is_an_error(kit):
    """It would never stop; the message lists what there is."""
    plan = RoundPlan(early_stopping=EarlyStopping(metric="evaluate.auc", mode="max"))
    with pytest.raises(ConfigError, match=r"'evaluate.auc', but there is only evaluate.accuracy"):
        run(kit, kit.Grid(kit.drift, [1, 2]), plan=plan)


def test_a_stop_is_heard_between_rounds(kit):
    """A grid that is stopping ends the run after the round, with all of it committed."""
    grid, recorder = kit.Grid(kit.drift, [1, 2]), kit.Recorder()
    grid.is_stopping = lambda: len(recorder.rows) == 2
    result = run(kit, grid, rounds=5, recorder=recorder)
    assert (result.status, result.rounds) == ("stopped", 2)
    assert result.cause == "the run was asked to stop"
    assert recorder.heard("stopped")[0]["round"] == 2


def test_a_stop_while_waiting_for_clients_is_no_failure(kit):
    """Too few clients in a run that is to end: it is stopped, not failed."""
    grid, asked = kit.Grid(kit.drift, [1]), []
    grid.is_stopping = lambda: bool(asked)
    grid.wait_for_nodes = asked.append
    assert run(kit, grid).status == "stopped"
    assert asked == [2]


def test_a_round_waits_until_enough_clients_are_there(kit):
    """A grid that can wait does; the recorder hears that the run is waiting."""
    grid, recorder = kit.Grid(kit.drift, [1]), kit.Recorder()
    grid.wait_for_nodes = lambda count: grid.nodes.append(count)
    assert run(kit, grid, rounds=1, recorder=recorder).rounds == 1
    assert recorder.heard("waiting") == [{"connected": 1, "needed": 2}]


def test_a_wait_that_ends_without_clients_is_a_missed_quorum(kit):
    """The grid has given up waiting: the error counts who is there."""
    grid = kit.Grid(kit.drift, [1])
    grid.wait_for_nodes = lambda count: None
    with pytest.raises(QuorumError, match="round 1: 1 of 2 clients are connected"):
        run(kit, grid)


def test_a_round_is_forgotten_when_it_is_durable(kit):
    """The grid may drop a round's messages after the commit, not before."""
    grid, recorder, seen = kit.Grid(kit.drift, [1, 2]), kit.Recorder(), []
    grid.forget = lambda group: seen.append((group, len(recorder.rows)))
    run(kit, grid, recorder=recorder, rounds=3)
    assert seen == [("1", 1), ("2", 2), ("3", 3)]


def test_traffic_is_counted_by_the_round(kit):
    """The row has what a grid's counters rose by in the round."""
    recorder = kit.Recorder()

    def client(message):
        grid.bytes_sent += 10
        grid.bytes_received += 3
        return kit.drift(message)

    grid = kit.Grid(client, [1, 2])
    grid.bytes_sent, grid.bytes_received = 100, 100
    run(kit, grid, recorder=recorder, rounds=2)
    assert [(r["bytes_sent"], r["bytes_received"]) for r in recorder.rows] == [(40, 12)] * 2


def test_a_round_begun_before_a_restart_keeps_its_cohort(kit):
    """The grid remembers whom it asked, whoever is connected now."""
    grid = kit.Grid(kit.drift, [5, 6, 7])
    grid.cohort_of = lambda group: [3, 1] if group == "1" else []
    run(kit, grid, rounds=2, plan=RoundPlan(evaluate_every=0))
    assert [m.metadata.dst_node_id for m in grid.sent] == [1, 3, 5, 6, 7]


def test_a_combined_reply_stands_for_its_clients(kit):
    """Sums made on the way count as the clients they are made of, within rounding."""
    slices = {1: [1, 2, 3], 4: [4, 5]}

    def combine(message):
        if message.metadata.message_type == "evaluate":
            return kit.drift(message)
        members = slices.get(message.metadata.dst_node_id)
        if members is None:
            return None
        aggregator, like = fedavg().aggregator, kit.model(np.float64)
        updates = []
        for member in members:
            message.metadata.dst_node_id = member
            reply = kit.drift(message)
            examples = float(reply["metrics"]["num-examples"])
            updates.append(kit.update(member, examples, arrays_to_params(reply["arrays"])))
        message.metadata.dst_node_id = members[0]
        part = aggregator.finish(aggregator.fold(aggregator.zero(like), updates))
        metrics = MetricRecord({"num-examples": part.weight, "combined-clients": members})
        return RecordDict({"arrays": params_to_arrays(part.mean), "metrics": metrics})

    model, recorder = kit.model(np.float64), kit.Recorder()
    grid = kit.Grid(combine, range(1, 6), lambda replies: replies[::-1])
    grid.combines_updates = True
    plan = RoundPlan(min_clients=5, evaluate_every=0)
    combined = run(kit, grid, model=model, plan=plan, rounds=1, recorder=recorder)
    separate = run(kit, kit.Grid(kit.drift, range(1, 6)), model=model, plan=plan, rounds=1)
    for name in model:
        np.testing.assert_allclose(
            combined.arrays[name].numpy(), separate.arrays[name].numpy(), rtol=1e-13
        )
    assert (recorder.rows[0]["clients"], recorder.rows[0]["failures"]) == (5, 0)


def test_a_client_cannot_claim_to_stand_for_others(kit):
    """On a grid that does not combine, the claim is only a metric; on one that does, the
    clients must be those that were asked and have not answered."""

    def client(message):
        reply = kit.drift(message)
        if message.metadata.dst_node_id == 2:
            reply["metrics"]["combined-clients"] = [1, 2]
        return reply

    recorder = kit.Recorder()
    plan = RoundPlan(evaluate_every=0)
    run(kit, kit.Grid(client, [1, 2, 3]), recorder=recorder, plan=plan, rounds=1)
    grid = kit.Grid(client, [1, 2, 3])
    grid.combines_updates = True
    run(kit, grid, recorder=recorder, plan=plan, rounds=2)
    (event,) = recorder.heard("update_refused")
    assert "counted already" in event["reason"]
    assert [row["clients"] for row in recorder.rows] == [3, 2]


def test_an_algorithm_that_needs_every_update_refuses_a_grid_that_combines(kit):
    """Said before the first round, with the reason."""
    grid = kit.Grid(kit.drift, [1, 2])
    grid.combines_updates = True
    with pytest.raises(ConfigError, match="needs every single update, but MemoryGrid"):
        run(kit, grid, algorithm=replace(fedavg(), linear=False))
    grid.adds_exactly = True
    for more in ({"linear": False}, {"lengths_max": {"w": 9}}, {"fault": lambda tensors: None}):
        with pytest.raises(ConfigError, match=r"behind a relay.*selection\.tags"):
            run(kit, grid, algorithm=replace(fedavg(), **more))


def test_a_checkpoint_of_another_model_is_refused(kit):
    """Continuing would mix two models; the message says what to do."""
    recorder = kit.Recorder()
    run(kit, kit.Grid(kit.drift, [1, 2]), recorder=recorder, rounds=1)
    for change in (
        {"model": {"w": np.zeros(3)}},
        {"algorithm": fedavg(server_optimizer="adam")},
    ):
        with pytest.raises(ConfigError, match="round 1 belongs to another model"):
            run(kit, kit.Grid(kit.drift, [1, 2]), recorder=recorder, **change)


def test_params_that_overflow_are_never_committed(kit):
    """Finite updates can still blow up the server optimizer: the round fails instead."""

    def client(message):
        params = {"w": np.full(2, 3e38, np.float32)}
        metrics = MetricRecord({"num-examples": 1})
        return RecordDict({"arrays": params_to_arrays(params), "metrics": metrics})

    recorder = kit.Recorder()
    with pytest.raises(RunError, match="round 1: the new params are useless: tensor 'w'"):
        run(
            kit,
            kit.Grid(client, [1, 2]),
            algorithm=fedavg(server_learning_rate=10.0),
            recorder=recorder,
            model={"w": np.zeros(2, np.float32)},
        )
    assert recorder.checkpoints == []


def test_flowers_own_arrays_work(kit):
    """An app that builds its params with Flower's Array trains to the same bytes."""
    arrays = ArrayRecord({name: Array(values) for name, values in kit.model().items()})
    grid = kit.Grid(kit.drift, [1, 2])
    strategy = FederatedStrategy(fedavg(), RoundPlan())
    theirs, ours = strategy.start(grid, arrays, num_rounds=2), run(kit, grid, rounds=2)
    assert kit.bytes_of(arrays_to_params(theirs.arrays)) == kit.bytes_of(
        arrays_to_params(ours.arrays)
    )


def test_replies_without_instructions_are_an_error():
    """aggregate_train belongs to a configure_train."""
    with pytest.raises(RunError, match="round 1: replies came before any instruction"):
        FederatedStrategy(fedavg(), RoundPlan()).aggregate_train(1, [])


def test_replies_stream_and_are_not_kept(kit):
    """In canonical order, no more than one group of updates is ever alive."""
    references, most = [], 0

    def client(message):
        nonlocal most
        reply = kit.drift(message)
        values = np.zeros(3, np.float32)
        references.append(weakref.ref(values))
        most = max(most, sum(reference() is not None for reference in references))
        reply["arrays"] = params_to_arrays({"w": values})
        return reply

    class Lazy(kit.Grid):
        def send_and_receive(self, messages, *, timeout=None):
            for message in messages:
                yield from kit.Grid.send_and_receive(self, [message])

    plan = RoundPlan(evaluate_every=0)
    model = {"w": np.zeros(3, np.float32)}
    run(kit, Lazy(client, range(100)), plan=plan, model=model, rounds=1)
    assert most <= fedavg().aggregator.group + 2


def test_flowers_differential_privacy_wraps_it(kit):
    """Flower's own wrapper around the strategy runs, and its params are what is sent next."""
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FederatedStrategy(fedavg(server_momentum=0.5), RoundPlan()),
        noise_multiplier=0.1,
        clipping_norm=1.0,
        num_sampled_clients=3,
    )
    grid = kit.Grid(kit.drift, [1, 2, 3])
    result = strategy.start(grid, params_to_arrays({"w": np.zeros(4, np.float64)}), num_rounds=2)
    sent = [m.content["arrays"]["w"].numpy() for m in grid.sent if m.metadata.group_id == "2"]
    assert np.abs(sent[0]).max() > 0
    assert result.arrays["w"].shape == (4,)
    assert list(result.train_metrics_clientapp) == [1, 2]
