"""Mods, a strategy of its own inside of a DP wrapper, logs, prints and files."""

import json
import os
from logging import INFO

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg


def counting_mod(message: Message, context: Context, call_next) -> Message:
    calls = context.state["calls"]["n"] if "calls" in context.state else 0
    context.state["calls"] = MetricRecord({"n": calls + 1})
    reply = call_next(message, context)
    reply.content["metrics"]["calls"] = calls + 1
    return reply


client_app = ClientApp(mods=[counting_mod])
server_app = ServerApp()


@client_app.train(mods=[fixedclipping_mod])
def train(message: Message, context: Context) -> Message:
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    index = context.node_config["partition-id"]
    print(f"client {index} trains")
    new = weights + np.float32(index + 1) * message.content["config"]["rate"]
    metrics = MetricRecord({"num-examples": 10 + index, "loss": float(weights.sum())})
    content = {"arrays": ArrayRecord([new.astype(np.float32)]), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    metrics = MetricRecord({"num-examples": 5, "largest": float(weights.max())})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


class Halving(FedAvg):
    """FedAvg whose rate goes down."""

    def configure_train(self, server_round, arrays, config, grid):
        config["rate"] = 1.0 / server_round
        return super().configure_train(server_round, arrays, config, grid)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    log(INFO, "the noisy app logs")
    print("the noisy app prints")
    strategy = DifferentialPrivacyClientSideFixedClipping(
        Halving(fraction_evaluate=1.0),
        noise_multiplier=0.0,
        clipping_norm=2.0,
        num_sampled_clients=3,
    )
    result = strategy.start(
        grid,
        ArrayRecord([np.zeros(6, np.float32)]),
        num_rounds=context.run_config["num-server-rounds"],
    )
    os.makedirs("checkpoints", exist_ok=True)
    np.save("checkpoints/final.npy", result.arrays.to_numpy_ndarrays()[0])
    rounds = {str(n): dict(m) for n, m in result.evaluate_metrics_clientapp.items()}
    trained = {str(n): dict(m) for n, m in result.train_metrics_clientapp.items()}
    with open("result.json", "w") as file:
        json.dump({"evaluated": rounds, "trained": trained}, file)
