"""XGBoost with Flower's bagging: params are bytes of JSON."""

import json

import numpy as np
import xgboost
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedXgbBagging

client_app = ClientApp()
server_app = ServerApp()
PARAMS = {
    "objective": "binary:logistic",
    "max_depth": 2,
    "eta": 0.3,
    "nthread": 1,
    "base_score": 0.5,
}


def data(index: int) -> xgboost.DMatrix:
    inputs = np.random.default_rng(index).normal(size=(80, 4))
    return xgboost.DMatrix(inputs, label=(inputs.sum(axis=1) > 0).astype(int))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    local = data(context.node_config["partition-id"])
    if message.content["config"]["server-round"] == 1:
        booster = xgboost.train(PARAMS, local, num_boost_round=1)
    else:
        booster = xgboost.Booster(params=PARAMS)
        booster.load_model(bytearray(message.content["arrays"]["0"].numpy().tobytes()))
        booster.update(local, booster.num_boosted_rounds())
        booster = booster[booster.num_boosted_rounds() - 1 :]
    raw = np.frombuffer(booster.save_raw("json"), dtype=np.uint8)
    metrics = MetricRecord({"num-examples": local.num_row()})
    content = {"arrays": ArrayRecord([raw]), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    booster = xgboost.Booster(params=PARAMS)
    booster.load_model(bytearray(message.content["arrays"]["0"].numpy().tobytes()))
    local = data(context.node_config["partition-id"] + 100)
    right = (booster.predict(local) > 0.5) == local.get_label()
    metrics = MetricRecord({"num-examples": local.num_row(), "accuracy": float(right.mean())})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedXgbBagging(fraction_evaluate=1.0)
    rounds = context.run_config["num-server-rounds"]
    empty = ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])
    result = strategy.start(grid, empty, num_rounds=rounds)
    accuracy = {str(n): m["accuracy"] for n, m in result.evaluate_metrics_clientapp.items()}
    with open("result.json", "w") as file:
        json.dump({"accuracy": accuracy}, file)
