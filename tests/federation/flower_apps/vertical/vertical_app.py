"""Vertical learning: clients hold columns, the server holds labels and pushes gradients."""

import json

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client_app = ClientApp()
server_app = ServerApp()
ROWS, COLUMNS, CLIENTS = 200, 4, 3


def columns(client: int) -> np.ndarray:
    return np.random.default_rng(client).normal(size=(ROWS, COLUMNS))


def labels() -> np.ndarray:
    total = sum(columns(client).sum(axis=1) for client in range(CLIENTS))
    return (total > 0).astype(float)


def weights(context: Context) -> np.ndarray:
    if "weights" not in context.state:
        return np.zeros(COLUMNS)
    return context.state["weights"]["w"].numpy()


@client_app.query("embed")
def embed(message: Message, context: Context) -> Message:
    data = columns(context.node_config["partition-id"])
    content = ArrayRecord({"embedding": Array(data @ weights(context))})
    return Message(RecordDict({"embedding": content}), reply_to=message)


@client_app.train("apply_gradient")
def apply_gradient(message: Message, context: Context) -> Message:
    gradient = message.content["gradient"]["g"].numpy()
    data = columns(context.node_config["partition-id"])
    new = weights(context) - 0.5 * data.T @ gradient / ROWS
    context.state["weights"] = ArrayRecord({"w": Array(new)})
    steps = context.state["steps"]["n"] if "steps" in context.state else 0
    context.state["steps"] = MetricRecord({"n": steps + 1})
    return Message(RecordDict(), reply_to=message)


@client_app.query("steps")
def steps(message: Message, context: Context) -> Message:
    seen = context.state["steps"]["n"] if "steps" in context.state else 0
    index = context.node_config["partition-id"]
    content = RecordDict(
        {"seen": MetricRecord({"n": seen}), "who": ConfigRecord({"name": f"part {index}"})}
    )
    return Message(content, reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    nodes, target = list(grid.get_node_ids()), labels()
    accuracies = []
    for _ in range(context.run_config["num-server-rounds"]):
        replies = grid.send_and_receive([Message(RecordDict(), n, "query.embed") for n in nodes])
        logits = sum(reply.content["embedding"]["embedding"].numpy() for reply in replies)
        accuracies.append(float(((logits > 0) == (target > 0.5)).mean()))
        gradient = ArrayRecord({"g": Array(1 / (1 + np.exp(-logits)) - target)})
        content = RecordDict({"gradient": gradient})
        grid.push_messages([Message(content, n, "train.apply_gradient") for n in nodes])
    replies = grid.send_and_receive([Message(RecordDict(), n, "query.steps") for n in nodes])
    seen = sorted(reply.content["seen"]["n"] for reply in replies)
    with open("result.json", "w") as file:
        json.dump({"accuracy": accuracies, "steps": seen}, file)
