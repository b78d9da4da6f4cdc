"""The older API: `server_fn`, a strategy of its own, `NumPyClient`."""

import json

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg


class Client(NumPyClient):
    def __init__(self, index: int) -> None:
        random = np.random.default_rng(index)
        self.inputs = random.normal(size=(20 + index, 3))
        self.targets = self.inputs @ np.array([1.0, -2.0, 3.0]) + 0.01 * index

    def fit(self, parameters, config):
        (weights,) = parameters
        error = self.inputs @ weights - self.targets
        new = weights - config["rate"] * self.inputs.T @ error / len(error)
        return [new], len(error), {"loss": float((error**2).mean())}

    def evaluate(self, parameters, config):
        error = self.inputs @ parameters[0] - self.targets
        return float((error**2).mean()), len(error), {"largest": float(abs(error).max())}


def client_fn(context: Context):
    return Client(context.node_config["partition-id"]).to_client()


def mean_of(key):
    def mean(metrics):
        total = sum(number for number, _ in metrics)
        return {key: sum(number * each[key] for number, each in metrics) / total}

    return mean


class Written(FedAvg):
    """FedAvg that writes what it made."""

    history: list

    def aggregate_fit(self, server_round, results, failures):
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        (weights,) = parameters_to_ndarrays(parameters)
        self.history.append({"weights": weights.tolist(), **metrics})
        with open("result.json", "w") as file:
            json.dump({"rounds": self.history, "failures": len(failures)}, file)
        return parameters, metrics


def server_fn(context: Context) -> ServerAppComponents:
    Written.history = []
    strategy = Written(
        fraction_evaluate=1.0,
        initial_parameters=ndarrays_to_parameters([np.zeros(3)]),
        on_fit_config_fn=lambda number: {"rate": 0.1, "current": number},
        fit_metrics_aggregation_fn=mean_of("loss"),
        evaluate_metrics_aggregation_fn=mean_of("largest"),
        evaluate_fn=lambda number, arrays, config: (
            float(number),
            {"norm": float(abs(arrays[0]).sum())},
        ),
    )
    config = ServerConfig(num_rounds=context.run_config["num-server-rounds"])
    return ServerAppComponents(strategy=strategy, config=config)


client_app = ClientApp(client_fn=client_fn)
server_app = ServerApp(server_fn=server_fn)
