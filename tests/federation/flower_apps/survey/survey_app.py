"""Questions only: nobody trains; answers are numbers, lists and text."""

import json

import numpy as np
import pandas as pd
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client_app = ClientApp()
server_app = ServerApp()


@client_app.query()
def answer(message: Message, context: Context) -> Message:
    path = context.node_config.get("dataset-path", "nowhere")
    index = context.node_config["partition-id"]
    frame = pd.DataFrame({"age": np.arange(10) + 10 * index})
    counts, _ = np.histogram(frame["age"], bins=[0, 10, 20, 40])
    metrics = MetricRecord({"mean": float(frame["age"].mean()), "counts": counts.tolist()})
    words = ConfigRecord({"from": path, "note": f"site {index} is fine"})
    return Message(RecordDict({"metrics": metrics, "words": words}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    nodes = list(grid.get_node_ids())
    for _ in range(2):
        messages = [Message(RecordDict(), node, "query") for node in nodes]
        replies = list(grid.send_and_receive(messages))
    counts = np.sum([reply.content["metrics"]["counts"] for reply in replies], axis=0)
    notes = sorted(reply.content["words"]["note"] for reply in replies)
    with open("result.json", "w") as file:
        json.dump({"counts": counts.tolist(), "notes": notes}, file)
