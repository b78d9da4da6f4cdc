"""What every algorithm with every server optimizer must hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meadow.flower.messages import params_to_arrays
from meadow.strategies.algorithms.auxiliary_names import kind_of
from meadow.strategies.algorithms.catalogue import CATALOGUE
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.algorithms.fedprox import fedprox
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan

SERVERS = {
    "sgd": {},
    "slow": {"server_learning_rate": 0.5},
    "momentum": {"server_momentum": 0.9},
    "adagrad": {"server_optimizer": "adagrad"},
    "adam": {"server_optimizer": "adam"},
    "yogi": {"server_optimizer": "yogi"},
}
ALGORITHMS = {
    "fedavg": lambda server: fedavg(**server),
    "fedprox": lambda server: fedprox(proximal_mu=0.1, server=fedavg(**server)),
}
TREES = ("xgb_bagging", "xgb_cyclic")
"""Their params are no numbers: test_boosted_trees.py has the same laws for them."""
EVERY = [
    pytest.param(lambda a=a, s=s: ALGORITHMS[a](SERVERS[s]), id=f"{a}-{s}")
    for a, s in itertools.product(ALGORITHMS, SERVERS)
]
EVERY += [
    pytest.param(lambda entry=entry: entry.builder(**entry.example), id=name)
    for name, entry in CATALOGUE.items()
    if name not in ALGORITHMS and name not in TREES
]
ROUNDS = 4
COUNTS = ("steps", "learned", "curvature", "mixture", "members")
"""Kinds of auxiliary that are numbers, which clients make larger."""
PARTS = ("below", "moments")
"""Kinds that are parts of a whole."""


def model_of(kit, dtype=np.float32):
    """Return the kit's model with a norm and a head, which some algorithms keep at the clients."""
    norm = {"norm.weight": np.ones(2, dtype), "norm.running_mean": np.zeros(2, dtype)}
    return {**kit.model(dtype), **norm, "out.bias": np.ones(3, dtype)}


def drift_of(kit):
    """Return the kit's client, whose numbers are such as a client that trains would have."""

    def client(message):
        content = kit.drift(message)
        for record in content.array_records.values():
            for name in [name for name in record if kind_of(name, PARTS)]:
                part = np.tanh(abs(record[name].numpy())) * 0.1 + 0.8
                record[name] = params_to_arrays({name: part})[name]
            for name in [name for name in record if kind_of(name, COUNTS)]:
                before = message.content["arrays"][name].numpy()
                counted = np.asarray(before + 1 + abs(record[name].numpy()), before.dtype)
                record[name] = params_to_arrays({name: counted})[name]
        return content

    return client


def run(kit, algorithm, *, recorder=None, rounds=ROUNDS, client=None, order=None, dtype=np.float32):
    grid = kit.Grid(client or drift_of(kit), range(1, 8), order)
    plan = RoundPlan(cohort=5, seed=3)
    strategy = FederatedStrategy(algorithm, plan, recorder=recorder)
    return strategy.start(grid, params_to_arrays(model_of(kit, dtype)), num_rounds=rounds)


def shapes(params):
    return {name: (values.shape, values.dtype) for name, values in params.items()}


def bytes_of(result):
    return {name: array.numpy().tobytes() for name, array in result.arrays.items()}


@pytest.mark.parametrize("build", EVERY)
def test_apply_changes_nothing_that_it_is_given(kit, build):
    """State in, state out: the old state and the aggregate stay as they were."""
    algorithm, params = build(), model_of(kit)
    aggregator, state = algorithm.aggregator, algorithm.init(params)
    sent = algorithm.sent(state)
    trained = {name: np.asarray(values + 1, values.dtype) for name, values in sent.items()}
    updates = [kit.update(client, 2.0, trained) for client in (1, 2, 3)]
    total = aggregator.fold(aggregator.zero(sent), updates)
    aggregate = aggregator.finish(total)
    before = [kit.bytes_of(p) for p in (state.params, aggregate.mean, *state.slots.values())]
    after = algorithm.apply(state, aggregate)
    assert before == [
        kit.bytes_of(p) for p in (state.params, aggregate.mean, *state.slots.values())
    ]
    assert (state.round, after.round) == (0, 1)
    assert after.slots.keys() == state.slots.keys()
    for name, values in state.params.items():
        assert (after.params[name].dtype, after.params[name].shape) == (values.dtype, values.shape)
    for slot, held in after.slots.items():
        assert shapes(held) == shapes(state.slots[slot])
        if slot not in ("mixture", "points"):
            assert shapes(held) == shapes(params)
    assert shapes(algorithm.sent(after)) == shapes(sent)


@pytest.mark.parametrize("build", EVERY)
def test_interrupted_at_every_round_is_uninterrupted(kit, build):
    """A run that is killed after each commit ends with the same bytes, slots included."""
    whole = kit.Recorder()
    expected = run(kit, build(), recorder=whole)
    pieces = kit.Recorder()
    for rounds in range(1, ROUNDS + 1):
        result = run(kit, build(), recorder=pieces, rounds=rounds)
    assert bytes_of(result) == bytes_of(expected)
    for slot, params in whole.checkpoints[-1].state.slots.items():
        assert kit.bytes_of(params) == kit.bytes_of(pieces.checkpoints[-1].state.slots[slot])
    assert len(pieces.heard("resumed")) == ROUNDS - 1
    assert result.best == expected.best
    assert result.train_metrics_clientapp == expected.train_metrics_clientapp
    assert [row["round"] for row in pieces.rows] == list(range(1, ROUNDS + 1))


@pytest.mark.parametrize("build", EVERY)
def test_interrupted_within_a_round_is_uninterrupted(kit, build):
    """A run that dies in the middle of a round repeats it, and ends with the same bytes."""
    expected = run(kit, build(), recorder=kit.Recorder())
    recorder, died = kit.Recorder(), []
    last = "train" if build().evaluated is None else "evaluate"

    def dies(message):
        number = message.content["config"]["server-round"]
        if number == 3 and message.metadata.message_type == last and not died:
            died.append(number)
            raise KeyboardInterrupt
        return drift_of(kit)(message)

    with pytest.raises(KeyboardInterrupt):
        run(kit, build(), recorder=recorder, client=dies)
    assert bytes_of(run(kit, build(), recorder=recorder, client=dies)) == bytes_of(expected)


@pytest.mark.parametrize("build", EVERY)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_order_of_arrival_changes_no_bit(kit, build, data):
    """Replies may come in any order: params and metrics are the same to the last bit."""
    seed = data.draw(st.integers(0, 2**32))
    generator = np.random.default_rng(seed)

    def shuffled(replies):
        return [replies[index] for index in generator.permutation(len(replies))]

    first, second = run(kit, build()), run(kit, build(), order=shuffled)
    assert bytes_of(first) == bytes_of(second)
    assert first.train_metrics_clientapp == second.train_metrics_clientapp
    assert first.evaluate_metrics_clientapp == second.evaluate_metrics_clientapp


@pytest.mark.parametrize("build", EVERY)
def test_no_recorder_gives_the_same_model(kit, build):
    """What is kept of a run does not change it."""
    assert bytes_of(run(kit, build())) == bytes_of(run(kit, build(), recorder=kit.Recorder()))
