"""scikit-learn's logistic regression."""

import json
import warnings

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.linear_model import LogisticRegression

client_app = ClientApp()
server_app = ServerApp()


def data(index: int) -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(index).normal(size=(60, 3))
    return inputs, (inputs @ np.array([1.0, 2.0, -1.0]) > 0).astype(int)


def model_of(arrays: list[np.ndarray]) -> LogisticRegression:
    model = LogisticRegression(max_iter=2, warm_start=True)
    model.classes_, (model.coef_, model.intercept_) = np.array([0, 1]), arrays
    return model


@client_app.train()
def train(message: Message, context: Context) -> Message:
    model = model_of(message.content["arrays"].to_numpy_ndarrays())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(*data(context.node_config["partition-id"]))
    arrays = ArrayRecord([model.coef_, model.intercept_])
    content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 60})}
    return Message(RecordDict(content), reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model = model_of(message.content["arrays"].to_numpy_ndarrays())
    accuracy = float(model.score(*data(context.node_config["partition-id"] + 50)))
    metrics = MetricRecord({"num-examples": 60, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    start = ArrayRecord([np.zeros((1, 3)), np.zeros(1)])
    rounds = context.run_config["num-server-rounds"]
    result = FedAvg(fraction_evaluate=1.0).start(grid, start, num_rounds=rounds)
    accuracy = {str(n): m["accuracy"] for n, m in result.evaluate_metrics_clientapp.items()}
    arrays = [array.tolist() for array in result.arrays.to_numpy_ndarrays()]
    with open("result.json", "w") as file:
        json.dump({"accuracy": accuracy, "arrays": arrays}, file)
