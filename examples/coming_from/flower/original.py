"""Federated averaging of softmax regression on digits, with Flower's message API."""

import digits
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app = ClientApp()
server_app = ServerApp()


def network() -> torch.nn.Linear:
    """Make the model, beginning with zeros."""
    model = torch.nn.Linear(64, 10)
    for param in model.parameters():
        torch.nn.init.zeros_(param)
    return model


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Make five steps on all digits that this client has."""
    inputs, targets = map(torch.from_numpy, digits.client(int(context.node_config["partition-id"])))
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"])
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    metrics = {"num-examples": len(targets), "train-loss": loss.item()}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


@torch.no_grad()
def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the model on the digits that no client has."""
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    inputs, targets = map(torch.from_numpy, digits.holdout())
    right = model(inputs).argmax(dim=1) == targets
    return MetricRecord({"accuracy": right.float().mean().item()})


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Average the models of all clients, ten times."""
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=digits.CLIENTS)
    result = strategy.start(
        grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=10,
        train_config=ConfigRecord({"lr": 0.5}),
        evaluate_fn=evaluate,
    )
    metrics = result.evaluate_metrics_serverapp
    accuracies = [metrics[number]["accuracy"] for number in range(1, 11)]
    digits.report(accuracies, *(array.numpy() for array in result.arrays.values()))


if __name__ == "__main__":
    run_simulation(server_app, client_app, num_supernodes=digits.CLIENTS)
