"""A client that adds its node id to everything."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from meadow.flower.messages import arrays_to_params, params_to_arrays

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return params that tell who trained them."""
    params = arrays_to_params(message.content.array_records["arrays"])
    moved = {name: values + context.node_id for name, values in params.items()}
    metrics = MetricRecord({"num-examples": 10, "loss": 1.0})
    return Message(
        RecordDict({"arrays": params_to_arrays(moved), "metrics": metrics}), reply_to=message
    )
