"""Server optimizers: a round by hand, and several against Flower's own strategies."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from meadow.errors import ConfigError
from meadow.flower.messages import arrays_to_params, params_to_arrays
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.algorithms.fedprox import fedprox
from meadow.strategies.algorithms.server_optimizers import adagrad, adam, sgd, yogi
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan

ROUNDS = 5

PAIRS = {
    "FedAvg": (lambda: fedavg(), lambda **k: flower.FedAvg(**k)),
    "FedAvgM": (
        lambda: fedavg(server_momentum=0.9, server_learning_rate=0.5),
        lambda **k: flower.FedAvgM(server_momentum=0.9, server_learning_rate=0.5, **k),
    ),
    "FedAvgM without momentum": (
        lambda: fedavg(server_learning_rate=0.3),
        lambda **k: flower.FedAvgM(server_learning_rate=0.3, **k),
    ),
    "FedAdagrad": (
        lambda: fedavg(server_optimizer="adagrad"),
        lambda **k: flower.FedAdagrad(**k),
    ),
    "FedAdam": (lambda: fedavg(server_optimizer="adam"), lambda **k: flower.FedAdam(**k)),
    "FedAdam with arguments": (
        lambda: fedavg(
            server_optimizer="adam", server_learning_rate=0.02, beta_1=0.5, beta_2=0.9, tau=0.1
        ),
        lambda **k: flower.FedAdam(eta=0.02, beta_1=0.5, beta_2=0.9, tau=0.1, **k),
    ),
    "FedYogi": (lambda: fedavg(server_optimizer="yogi"), lambda **k: flower.FedYogi(**k)),
    "FedProx": (
        lambda: fedprox(proximal_mu=0.1),
        lambda **k: flower.FedProx(proximal_mu=0.1, **k),
    ),
}


def replies_to(messages, number):
    """What clients answer: it depends on the client and the round only, and moves the params."""
    for message in messages:
        client = message.metadata.dst_node_id
        generator = np.random.default_rng([client, number])
        trained = {
            name: Array(np.asarray(array.numpy() * 0.8 + generator.standard_normal(array.shape)))
            for name, array in message.content["arrays"].items()
        }
        metrics = MetricRecord({"num-examples": 3 * client + number, "loss": 1 / client})
        content = RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics})
        yield Message(content, reply_to=message)


def run(strategy, grid, params):
    arrays = ArrayRecord({name: Array(values) for name, values in params.items()})
    losses, configs = [], []
    for number in range(1, ROUNDS + 1):
        messages = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
        configs.append(dict(messages[0].content["config"]))
        arrays, metrics = strategy.aggregate_train(number, list(replies_to(messages, number)))
        losses.append(metrics["loss"])
    return arrays_to_params(arrays), losses, configs


@pytest.mark.parametrize("name", PAIRS)
def test_numbers_equal_flowers(kit, name):
    """Five rounds on the same replies give Flower's params, losses and client settings."""
    ours, theirs = PAIRS[name]
    grid, params = kit.Grid(lambda _: None, [1, 2, 3]), kit.model(np.float64)
    expected = run(theirs(), grid, params)
    got = run(FederatedStrategy(ours(), RoundPlan()), grid, params)
    for tensor in params:
        np.testing.assert_allclose(
            got[0][tensor], expected[0][tensor], rtol=1e-11, atol=1e-13, err_msg=tensor
        )
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-12)
    assert got[2] == expected[2]


def scalar(value, dtype=np.float64):
    return {"w": np.array([value], dtype)}


def two_rounds(optimizer, means):
    """Params 1.0, and the means of two rounds; returns both rounds' params."""
    params, slots, seen = scalar(1.0), optimizer.init(scalar(1.0)), []
    for number, mean in enumerate(means, start=1):
        params, slots = optimizer.apply(params, scalar(mean), slots, number)
        seen.append(float(params["w"][0]))
    return seen


def test_momentum_by_hand():
    """Velocities 0.5 and 0.5 * 0.5 + 0.25: from 1.0 to 0.5, and to 0.0 (rate 1, momentum 0.5)."""
    assert two_rounds(sgd(momentum=0.5), [0.5, 0.25]) == [0.5, 0.0]


def test_adagrad_by_hand():
    """Deltas 3 and 4: second moments 9 and 25, steps 3 / (3 + 1) and 4 / (5 + 1)."""
    after = two_rounds(adagrad(learning_rate=1.0, tau=1.0), [4.0, 5.75])
    np.testing.assert_allclose(after, [1.75, 1.75 + 4 / 6], rtol=1e-15)


def test_adam_by_hand():
    """Delta 2, betas 0.5 and 0.75: moments 1 and 1, exponent 2 in the correction."""
    after = two_rounds(adam(learning_rate=1.0, beta_1=0.5, beta_2=0.75, tau=1.0), [3.0])
    np.testing.assert_allclose(after, [1 + np.sqrt(1 - 0.75**2) / (1 - 0.5**2) * 1 / 2])


def test_yogi_by_hand():
    """Delta 2: the second moment goes from 0 up by a quarter of 4, whatever it was."""
    after = two_rounds(yogi(learning_rate=1.0, beta_1=0.5, beta_2=0.75, tau=1.0), [3.0])
    np.testing.assert_allclose(after, [1 + 1 / (1 + 1)])


def test_counters_become_the_mean_and_complex_tensors_are_pairs():
    """Integers have no gradient; a complex delta's parts have moments of their own."""
    old = {"steps": np.array([7]), "z": np.array([1 + 1j], np.complex64)}
    mean = {"steps": np.array([9]), "z": np.array([1 + 4j], np.complex64)}
    optimizer = adagrad(learning_rate=1.0, tau=1.0)
    new, slots = optimizer.apply(old, mean, optimizer.init(old), 1)
    assert new["steps"].tolist() == [9]
    np.testing.assert_allclose(new["z"], [1 + 1.75j])
    np.testing.assert_allclose(slots["second_moment"]["z"], [9j])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_small_floats_keep_float32_slots(dtype):
    """A second moment would underflow in 16 bits."""
    old, mean = scalar(1.0, dtype), scalar(1.0078125, dtype)
    optimizer = adam()
    new, slots = optimizer.apply(old, mean, optimizer.init(old), 1)
    assert new["w"].dtype == dtype
    assert slots["second_moment"]["w"].dtype == np.float32
    assert slots["second_moment"]["w"][0] > 0


def test_plain_fedavg_makes_no_copy_of_the_mean():
    """With rate 1 and no momentum, the new params are the mean itself."""
    mean = scalar(2.0)
    assert sgd().apply(scalar(1.0), mean, {}, 1)[0] is mean


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"server_learning_rate": 0.0}, "server_learning_rate must be > 0, got 0.0"),
        ({"server_learning_rate": float("nan")}, "server_learning_rate must be a finite number"),
        ({"server_momentum": 1.0}, "server_momentum must be < 1, got 1.0"),
        ({"server_momentum": -0.1}, "server_momentum must be >= 0, got -0.1"),
        ({"server_momentum": True}, "server_momentum must be a finite number, got True"),
        ({"server_optimizer": "adam", "beta_1": 1.5}, "beta_1 must be < 1, got 1.5"),
        ({"server_optimizer": "adam", "beta_2": -1}, "beta_2 must be >= 0, got -1"),
        ({"server_optimizer": "yogi", "tau": 0}, "tau must be > 0, got 0"),
        ({"server_optimizer": "adagrad", "beta_2": 0.9}, "beta_2 does not belong to .*adagrad"),
        ({"tau": 0.1}, "tau does not belong to server_optimizer 'sgd'"),
        ({"server_optimizer": "adam", "server_momentum": 0.9}, "server_momentum does not belong"),
        ({"server_optimizer": "lamb"}, "must be one of adagrad, adam, sgd, yogi, got 'lamb'"),
    ],
)
def test_bad_hyperparameters_are_named(arguments, sentence):
    """The message says which argument, its bound and its value."""
    with pytest.raises(ConfigError, match=sentence):
        fedavg(**arguments)


@pytest.mark.parametrize("mu", [-0.1, float("inf"), "0.1"])
def test_a_bad_proximal_mu_is_named(mu):
    """A negative pull would push clients away from the global params."""
    with pytest.raises(ConfigError, match="proximal_mu must be"):
        fedprox(proximal_mu=mu)


def test_fedprox_works_with_every_server_optimizer():
    """The clients' objective and the server's optimizer are independent."""
    algorithm = fedprox(proximal_mu=0.5, server=fedavg(server_optimizer="adam"))
    assert algorithm.client_config == {"proximal-mu": 0.5}
    assert set(algorithm.init(scalar(1.0)).slots) == {"first_moment", "second_moment"}
    assert params_to_arrays(algorithm.init(scalar(1.0)).params)["w"].shape == (1,)
