"""The server side: a question, rounds of FedAvg, another question."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from . import task

POLL_S = 0.2

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask what there is to learn from, learn, and ask what was seen."""
    config = context.run_config
    clients = int(str(config["min-clients"]))
    examples = _ask(
        grid, clients, "query", {"config": ConfigRecord({"question": "how many examples?"})}
    )
    total = sum(examples_of["num-examples"] for examples_of in examples)
    strategy = FedAvg(
        fraction_evaluate=float(str(config["fraction-evaluate"])),
        min_train_nodes=clients,
        min_evaluate_nodes=clients,
        min_available_nodes=clients,
    )
    result = strategy.start(
        grid,
        initial_arrays=ArrayRecord(numpy_ndarrays=list(task.initial_params().values())),
        num_rounds=int(str(config["num-server-rounds"])),
        train_config=ConfigRecord({"learning-rate": float(str(config["learning-rate"]))}),
        evaluate_fn=_evaluate,
    )
    whole = MetricRecord({"num-examples": total})
    answers = _ask(grid, clients, "query.share", {"metrics": whole})
    if path := str(config["result-file"]):
        Path(path).write_text(json.dumps(_summary(result, total, answers)))


def _ask(
    grid: Grid, clients: int, message_type: str, content: Mapping[str, ConfigRecord | MetricRecord]
) -> list[dict[str, Any]]:
    """Send a question to every client, and return the metrics of those that answer."""
    while len(node_ids := list(grid.get_node_ids())) < clients:
        time.sleep(POLL_S)
    questions = [Message(RecordDict(content), node, message_type) for node in node_ids]
    replies = grid.send_and_receive(questions)
    return [dict(r.content.metric_records["metrics"]) for r in replies if r.has_content()]


def _evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the params on examples that no client has."""
    weight, bias = arrays.to_numpy_ndarrays()
    return MetricRecord(task.evaluate({"weight": weight, "bias": bias}, task.server_data()))


def _summary(result: Result, total: int, answers: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "examples": total,
        "share": sum(answer["share"] for answer in answers),
        "rounds-seen": sorted(answer["rounds-seen"] for answer in answers),
        "train": {n: dict(m) for n, m in result.train_metrics_clientapp.items()},
        "evaluate": {n: dict(m) for n, m in result.evaluate_metrics_clientapp.items()},
        "server": {n: dict(m) for n, m in result.evaluate_metrics_serverapp.items()},
    }
