"""Analytics by the older API: a strategy of its own whose params are text, and one round."""

import json

import numpy as np
import pandas as pd
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import Strategy


class Client(NumPyClient):
    def __init__(self, index: int) -> None:
        values = np.random.default_rng(index).normal(size=50)
        self.frame = pd.DataFrame({"length": values, "time": np.arange(50) + index})

    def fit(self, parameters, config):
        counts, _ = np.histogram(self.frame["length"], bins=np.linspace(-3, 3, 5))
        return [counts, self.frame["time"].to_numpy()], len(self.frame), {"site": "a clinic"}


def client_fn(context: Context):
    return Client(context.node_config["partition-id"]).to_client()


class Analytics(Strategy):
    def initialize_parameters(self, client_manager=None):
        return None

    def configure_fit(self, server_round, parameters, client_manager):
        clients = client_manager.sample(num_clients=3, min_num_clients=3)
        return [(client, FitIns(parameters, {})) for client in clients]

    def aggregate_fit(self, server_round, results, failures):
        arrays = [parameters_to_ndarrays(result.parameters) for _, result in results]
        counts = sum(each[0] for each in arrays)
        times = np.sort(np.concatenate([each[1] for each in arrays]))
        with open("result.json", "w") as file:
            json.dump({"counts": counts.tolist(), "median": float(np.median(times))}, file)
        return ndarrays_to_parameters(np.concatenate((["length:"], counts))), {}

    def evaluate(self, server_round, parameters):
        return 0.0, {"histogram": [each.item() for each in parameters_to_ndarrays(parameters)]}

    def configure_evaluate(self, server_round, parameters, client_manager):
        return []

    def aggregate_evaluate(self, server_round, results, failures):
        return None, {}


def server_fn(context: Context) -> ServerAppComponents:
    return ServerAppComponents(strategy=Analytics(), config=ServerConfig(num_rounds=1))


client_app = ClientApp(client_fn=client_fn)
server_app = ServerApp(server_fn=server_fn)
