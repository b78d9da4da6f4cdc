"""The algorithms for unequal clients, by hand on two clients and three params, and beside Flower's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import QFedAvg
from torch import nn

import meadow
from meadow.errors import ConfigError, RunError
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.strategies.algorithms.afl import afl
from meadow.strategies.algorithms.algorithm import Algorithm
from meadow.strategies.algorithms.catalogue import CATALOGUE
from meadow.strategies.algorithms.feddyn import feddyn
from meadow.strategies.algorithms.fedlion import fedlion
from meadow.strategies.algorithms.fednova import fednova
from meadow.strategies.algorithms.qfedavg import qfedavg
from meadow.strategies.algorithms.scaffold import scaffold
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan

identify_process(run_id=1, node_id=0)

RATE = 0.1
STEPS = 2
START = np.array([1.0, -2.0, 0.5])
OPTIMA = np.array([[3.0, 0.0, 1.0], [-1.0, 1.0, 2.0]])
CURVATURES = np.array([1.0, 4.0])
"""Client k's loss is curvature / 2 |params - optimum|^2, on as many equal examples as it has."""
EXAMPLES = (1, 3)
SHARES = np.array(EXAMPLES) / sum(EXAMPLES)


class Point(nn.Module):
    """Three params, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.tensor(START, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.at.expand(len(inputs), -1)


def load(site: meadow.Site) -> meadow.ClientData:
    count = EXAMPLES[site.index]
    inputs = torch.full((count, 1), CURVATURES[site.index], dtype=torch.float64)
    targets = torch.tensor(OPTIMA[site.index]).expand(count, -1)
    wanted = torch.cat([inputs, targets], 1)
    return meadow.ClientData(train=(inputs, wanted), test=(inputs, wanted))


def loss(outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return wanted[:, 0] / 2 * (outputs - wanted[:, 1:]).square().sum(1)


TASK = meadow.Task(model=Point, loss=loss, client_data=load)


def rounds_of(kit: Any, algorithm: Algorithm, number: int, **config: Any) -> list[Any]:
    """Run Meadow's own clients, and return the states after each round."""
    app = meadow.client_app(TASK, device="cpu")
    contexts = {
        node: Context(
            run_id=1,
            node_id=node,
            node_config={"site-index": node - 1, "site-count": 2},
            state=RecordDict(),
            run_config={},
        )
        for node in (1, 2)
    }

    def client(message: Message) -> RecordDict:
        return app(message, contexts[message.metadata.dst_node_id]).content

    recorder = kit.Recorder()
    strategy = FederatedStrategy(algorithm, RoundPlan(evaluate_every=0), recorder=recorder)
    strategy.start(
        kit.Grid(client, (1, 2)),
        params_to_arrays({"at": START}),
        number,
        train_config=ConfigRecord({"learning-rate": RATE, "epochs": STEPS, **config}),
    )
    return [checkpoint.state for checkpoint in recorder.checkpoints]


def gradient(client: int, at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return CURVATURES[client] * (at - OPTIMA[client])


def loss_of(client: int, at: np.ndarray[Any, Any]) -> float:
    return float(CURVATURES[client] / 2 * np.square(at - OPTIMA[client]).sum())


def descended(client: int, at: np.ndarray[Any, Any], steps: int = STEPS) -> np.ndarray[Any, Any]:
    for _ in range(steps):
        at = at - RATE * gradient(client, at)
    return at


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_scaffold_by_hand(kit: Any) -> None:
    """Algorithm 1 of the paper, option II, written out for both clients and two rounds."""
    x, c, own = START, np.zeros(3), [np.zeros(3), np.zeros(3)]
    for state in rounds_of(kit, scaffold(server_learning_rate=0.5), 2):
        ends, changes = [], []
        for k in range(2):
            y = x
            for _ in range(STEPS):
                y = y - RATE * (gradient(k, y) - own[k] + c)
            new = own[k] - c + (x - y) / (STEPS * RATE)
            ends.append(y)
            changes.append(new - own[k])
            own[k] = new
        x = x + 0.5 * (SHARES @ np.array(ends) - x)
        c = c + SHARES @ np.array(changes)
        close(state.params["at"], x)
        close(state.slots["control"]["at"], c)


def test_a_part_of_the_clients_moves_scaffolds_control_by_its_share() -> None:
    """c moves by |S| / N times the mean delta."""
    algorithm = scaffold(participation=0.25)
    state = algorithm.init({"at": START})
    mean = {"at": START, "control/at": np.full(3, 2.0)}
    after = algorithm.apply(state, meadow_aggregate(mean))
    close(after.slots["control"]["at"], np.full(3, 0.5))


def meadow_aggregate(mean: dict[str, Any]) -> Any:
    from meadow.strategies.algorithms.algorithm import Aggregate

    return Aggregate(mean=mean, weight=4.0, clients=2)


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.5)])
def test_fednova_by_hand(kit: Any, momentum: float, mu: float) -> None:
    """Equation 6: with batches of one example the second client makes three times the steps."""
    config = {"batch-size": 1, "momentum": momentum, "proximal-mu": mu}
    (state,) = rounds_of(kit, fednova(), 1, **config)
    directions, counts = [], []
    for k, steps in enumerate((STEPS, 3 * STEPS)):
        y, velocity = START, np.zeros(3)
        for _ in range(steps):
            velocity = momentum * velocity + gradient(k, y) + mu * (y - START)
            y = y - RATE * velocity
        # the paper's norms of a_i, section 4
        if mu:
            count = (1 - (1 - RATE * mu) ** steps) / (RATE * mu)
        elif momentum:
            rho = momentum
            count = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        else:
            count = steps
        directions.append((y - START) / count)
        counts.append(count)
    close(state.params["at"], START + (SHARES @ counts) * (SHARES @ np.array(directions)))


def test_fednova_finds_the_optimum_that_fedavg_misses(kit: Any) -> None:
    """With unequal steps FedAvg ends elsewhere than where the gradients cancel; FedNova does not.

    The steps are small: the claim is about inconsistency, not about drift.
    """
    weights = SHARES * CURVATURES
    optimum = weights @ OPTIMA / weights.sum()
    settings = {"batch-size": 1, "learning-rate": 0.005}
    ends = {
        name: rounds_of(kit, CATALOGUE[name].builder(), 200, **settings)[-1].params["at"]
        for name in ("fedavg", "fednova")
    }
    errors = {name: float(np.linalg.norm(end - optimum)) for name, end in ends.items()}
    assert errors["fednova"] < 0.1 * errors["fedavg"]


def test_feddyn_by_hand(kit: Any) -> None:
    """Algorithm 1, with the clients' argmin approached by as many steps of gradient descent."""
    alpha = 0.5
    x, h, own = START, np.zeros(3), [np.zeros(3), np.zeros(3)]
    for state in rounds_of(kit, feddyn(alpha=alpha), 2):
        ends = []
        for k in range(2):
            y = x
            for _ in range(STEPS):
                y = y - RATE * (gradient(k, y) - own[k] + alpha * (y - x))
            own[k] = own[k] - alpha * (y - x)
            ends.append(y)
        mean = SHARES @ np.array(ends)
        h = h - alpha * (mean - x)
        x = mean - h / alpha
        close(state.params["at"], x)
        close(state.slots["drift"]["at"], h)


def test_qfedavg_by_hand(kit: Any) -> None:
    """Algorithm 2, with clients weighted by their examples."""
    q = 0.7
    (state,) = rounds_of(kit, qfedavg(q=q), 1)
    deltas, curvatures = [], []
    for k in range(2):
        step = (START - descended(k, START)) / RATE
        f = loss_of(k, START)
        deltas.append(f**q * step)
        curvatures.append(q * f ** (q - 1) * float(step @ step) + f**q / RATE)
    close(state.params["at"], START - (SHARES @ np.array(deltas)) / (SHARES @ curvatures))


def test_qfedavg_is_flowers(kit: Any) -> None:
    """With equal weights the new params are those of flwr.serverapp.strategy.QFedAvg."""
    q, start = 0.4, START.astype(np.float32)
    generator = np.random.default_rng(0)
    trained = {k: start + generator.standard_normal(3).astype(np.float32) for k in (1, 2)}
    losses = {1: 0.8, 2: 2.5}
    theirs = QFedAvg(client_learning_rate=RATE, q=q, train_loss_key="loss")
    theirs.current_arrays = ArrayRecord([start])
    replies, sums, total = [], np.zeros(3), 0.0
    for k in (1, 2):
        metrics = MetricRecord({"loss": losses[k], "num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord([trained[k]]), "metrics": metrics})
        question = Message(RecordDict(), k, "train")
        replies.append(Message(content, reply_to=question))
        change = trained[k].astype(np.float64) - start
        lifted = losses[k] ** q
        sums = sums + lifted * change / 2
        total += (q * losses[k] ** (q - 1) / RATE * float(change @ change) + lifted) / 2
    arrays, _ = theirs.aggregate_train(1, replies)
    assert arrays is not None
    algorithm = qfedavg(q=q)
    mean = {"at": START + sums, "curvature/mean": np.asarray(total)}
    state = algorithm.apply(algorithm.init({"at": START}), meadow_aggregate(mean))
    np.testing.assert_allclose(state.params["at"], arrays.to_numpy_ndarrays()[0], atol=1e-5)


def test_qfedavg_spreads_the_losses_more_evenly(kit: Any) -> None:
    """The larger q, the closer the clients' losses are to each other."""
    gaps = []
    for q in (0.0, 1.0, 4.0):
        end = rounds_of(kit, qfedavg(q=q), 80)[-1].params["at"]
        gaps.append(abs(loss_of(0, end) - loss_of(1, end)))
    assert gaps[0] > 1.2 * gaps[1] > 1.2 * gaps[2]


def test_afl_by_hand(kit: Any) -> None:
    """Weights that grow by exp(rate x loss), normalised over the clients, in three rounds."""
    rate, x, scores = 0.05, START, np.zeros(2)
    for state in rounds_of(kit, afl(mixture_learning_rate=rate), 3):
        mixture = SHARES * np.exp(scores)
        mixture /= mixture.sum()
        scores = scores + [rate * loss_of(k, x) for k in range(2)]
        x = mixture @ np.array([descended(k, x) for k in range(2)])
        close(state.params["at"], x)


def test_afl_serves_the_worst_client_better(kit: Any) -> None:
    """The largest of the clients' losses is smaller than under FedAvg."""
    worst = {}
    for name, algorithm in (
        ("afl", afl(mixture_learning_rate=0.02)),
        ("fedavg", afl(mixture_learning_rate=0.0)),
    ):
        end = rounds_of(kit, algorithm, 150, **{"learning-rate": 0.04})[-1].params["at"]
        worst[name] = max(loss_of(k, end) for k in range(2))
    assert worst["afl"] < 0.7 * worst["fedavg"]


def test_fedlion_by_hand(kit: Any) -> None:
    """Algorithm 1: signs of the interpolated momentum, and the momenta's mean."""
    b1, b2, x, m = 0.9, 0.99, START, np.zeros(3)
    for state in rounds_of(kit, fedlion(beta_1=b1, beta_2=b2), 3):
        ends, momenta = [], []
        for k in range(2):
            y, own = x, m
            for _ in range(STEPS):
                g = gradient(k, y)
                y, own = y - RATE * np.sign(b1 * own + (1 - b1) * g), b2 * own + (1 - b2) * g
            ends.append(y)
            momenta.append(own)
        x, m = SHARES @ np.array(ends), SHARES @ np.array(momenta)
        close(state.params["at"], x)
        close(state.slots["momentum"]["at"], m)


def test_scaffold_beats_fedavg_at_equal_rounds(kit: Any) -> None:
    """With many local steps FedAvg stops short of the optimum; SCAFFOLD and FedDyn reach it."""
    weights = SHARES * CURVATURES
    optimum = weights @ OPTIMA / weights.sum()
    built = {
        "fedavg": CATALOGUE["fedavg"].builder(),
        "scaffold": scaffold(),
        "feddyn": feddyn(alpha=1),
    }
    errors = {
        name: float(np.linalg.norm(rounds_of(kit, a, 60, epochs=10)[-1].params["at"] - optimum))
        for name, a in built.items()
    }
    assert errors["scaffold"] < 0.01 * errors["fedavg"], errors
    assert errors["feddyn"] < 0.01 * errors["fedavg"], errors


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: scaffold(participation=0), "participation must be > 0, got 0"),
        (lambda: scaffold(server_learning_rate=-1), "server_learning_rate must be > 0"),
        (lambda: fednova(server_learning_rate=math.nan), "server_learning_rate must be a finite"),
        (lambda: feddyn(alpha=0), "alpha must be > 0, got 0"),
        (lambda: qfedavg(q=-1), "q must be >= 0, got -1"),
        (lambda: afl(mixture_learning_rate=-1), "mixture_learning_rate must be >= 0, got -1"),
        (lambda: fedlion(beta_1=1), "beta_1 must be < 1, got 1"),
    ],
)
def test_a_bad_argument_is_named(build: Any, sentence: str) -> None:
    """A builder names the argument, the bound and the value."""
    with pytest.raises(ConfigError, match=sentence):
        build()


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [(fednova(), "steps/at"), (qfedavg(), "curvature/mean"), (afl(), "mixture/mean")],
)
def test_useless_totals_end_the_round(algorithm: Algorithm, name: str) -> None:
    """Clients that answer with numbers that nothing can be divided by cannot make params of it."""
    with pytest.raises(RunError, match="must have a mean > 0, got -3"):
        algorithm.apply(
            algorithm.init({"at": START}), meadow_aggregate({"at": START, name: np.asarray(-3.0)})
        )


def test_a_model_may_not_have_a_companions_name(kit: Any) -> None:
    """A tensor that would be taken for a control variate is refused before anything is sent."""
    grid = kit.Grid(kit.drift, (1, 2))
    with pytest.raises(ConfigError, match="'control/at' has a name that scaffold uses"):
        FederatedStrategy(scaffold(), RoundPlan()).start(
            grid, params_to_arrays({"control/at": START}), 1
        )
    assert not grid.sent


def test_clients_without_the_companions_are_refused(kit: Any) -> None:
    """A client that knows nothing of the algorithm answers with params alone: it does not count."""
    recorder = kit.Recorder()

    def plain(message: Message) -> RecordDict:
        params = arrays_to_params(message.content["arrays"])
        arrays = params_to_arrays({"at": params["at"]})
        return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})

    strategy = FederatedStrategy(scaffold(), RoundPlan(), recorder=recorder)
    with pytest.raises(RunError, match="quorum not met"):
        strategy.start(kit.Grid(plain, (1, 2)), params_to_arrays({"at": START}), 1)
    assert recorder.heard("update_refused")[0]["field"] == "tensor 'control/at'"
