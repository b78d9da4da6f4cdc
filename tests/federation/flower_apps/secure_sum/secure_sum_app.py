"""SecAgg+ as a workflow and a mod."""

import json

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Grid, LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow


class Client(NumPyClient):
    def __init__(self, index: int) -> None:
        self.index = index

    def fit(self, parameters, config):
        return [parameters[0] + self.index + 1.0], 10, {}

    def evaluate(self, parameters, config):
        return float(parameters[0].sum()), 10, {}


def client_fn(context: Context):
    return Client(context.node_config["partition-id"]).to_client()


client_app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod])
server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    results = []

    class Written(FedAvg):
        def aggregate_fit(self, server_round, answers, failures):
            parameters, metrics = super().aggregate_fit(server_round, answers, failures)
            results.append(parameters_to_ndarrays(parameters)[0].tolist())
            return parameters, metrics

    strategy = Written(initial_parameters=ndarrays_to_parameters([np.zeros(4)]))
    context = LegacyContext(
        context=context,
        config=ServerConfig(num_rounds=context.run_config["num-server-rounds"]),
        strategy=strategy,
    )
    fit = SecAggPlusWorkflow(
        num_shares=context.run_config["shares"],
        reconstruction_threshold=context.run_config["threshold"],
        max_weight=100,
    )
    DefaultWorkflow(fit_workflow=fit)(grid, context)
    with open("result.json", "w") as file:
        json.dump({"rounds": results}, file)
