"""The client side: trains, evaluates, and answers two questions."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from . import task


def count_calls(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Count the messages that this client has had, and report the number with each reply."""
    before = context.state.metric_records.get("calls", MetricRecord({"count": 0}))
    calls = MetricRecord({"count": int(str(before["count"])) + 1})
    context.state["calls"] = calls
    reply = call_next(message, context)
    if reply.has_content() and "metrics" in reply.content:
        reply.content.metric_records["metrics"]["calls"] = calls["count"]
    return reply


app = ClientApp(mods=[count_calls])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this client's digits, and remember how many rounds that makes."""
    rounds = _rounds_seen(context) + 1
    context.state["history"] = ConfigRecord({"rounds-seen": rounds})
    config = message.content.config_records["config"]
    data = task.client_data(context.node_config)
    params = task.train(
        _params(message),
        data,
        epochs=int(str(context.run_config["local-epochs"])),
        batch_size=int(str(context.run_config["batch-size"])),
        learning_rate=float(str(config["learning-rate"])),
        seed=int(str(config["server-round"])),
    )
    metrics = {**task.evaluate(params, data), "num-examples": len(data[1]), "rounds-seen": rounds}
    content = {
        "arrays": ArrayRecord(numpy_ndarrays=list(params.values())),
        "metrics": MetricRecord(metrics),
    }
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the params on this client's digits."""
    data = task.client_data(context.node_config)
    metrics = {**task.evaluate(_params(message), data), "num-examples": len(data[1])}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


@app.query()
def count(message: Message, context: Context) -> Message:
    """Say how many examples of each digit there are, and repeat the question."""
    _, labels = task.client_data(context.node_config)
    asked = message.content.config_records["config"]["question"]
    per_class = [int((labels == digit).sum()) for digit in range(task.CLASSES)]
    content = {
        "metrics": MetricRecord({"num-examples": len(labels), "per-class": per_class}),
        "config": ConfigRecord({"question": asked, "answered": True}),
    }
    return Message(RecordDict(content), reply_to=message)


@app.query("share")
def share(message: Message, context: Context) -> Message:
    """Say which part of all examples is here, and how many rounds this client has seen."""
    _, labels = task.client_data(context.node_config)
    total = message.content.metric_records["metrics"]["num-examples"]
    answer = MetricRecord(
        {"share": len(labels) / float(str(total)), "rounds-seen": _rounds_seen(context)}
    )
    return Message(RecordDict({"metrics": answer}), reply_to=message)


def _params(message: Message) -> task.Params:
    weight, bias = message.content.array_records["arrays"].to_numpy_ndarrays()
    return {"weight": weight, "bias": bias}


def _rounds_seen(context: Context) -> int:
    history = context.state.config_records.get("history", ConfigRecord({"rounds-seen": 0}))
    return int(str(history["rounds-seen"]))
