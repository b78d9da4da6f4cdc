"""A VAE under a trainer of its own, like Lightning's, and DP-SGD by Opacus beside it."""

import json

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

client_app = ClientApp()
server_app = ServerApp()


class Autoencoder(nn.Module):
    """A module that says its own step and optimizer, as Lightning's modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 4), nn.Linear(2, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        mean, logarithm = self.encode(inputs).chunk(2, dim=1)
        return self.decode(mean + torch.randn_like(mean) * (0.5 * logarithm).exp())

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return ((self(batch[0]) - batch[0]) ** 2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Trainer:
    """Fits a module."""

    def fit(self, module: Autoencoder, loader: DataLoader) -> float:
        optimizer, losses = module.configure_optimizers(), []
        for batch in loader:
            optimizer.zero_grad()
            loss = module.training_step(batch)
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        return float(np.mean(losses))


def loader_of(index: int) -> DataLoader:
    random = torch.Generator().manual_seed(index)
    return DataLoader(TensorDataset(torch.randn(64, 8, generator=random)), batch_size=16)


def seeded(message: Message, context: Context) -> None:
    torch.manual_seed(
        1000 * message.content["config"]["server-round"] + context.node_config["partition-id"]
    )


@client_app.train()
def train(message: Message, context: Context) -> Message:
    seeded(message, context)
    module = Autoencoder()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader = loader_of(context.node_config["partition-id"])
    loss, spent = Trainer().fit(module, loader), -1.0
    if context.run_config["private"]:
        from opacus import PrivacyEngine

        engine = PrivacyEngine(accountant="rdp")
        optimizer = module.configure_optimizers()
        private, optimizer, loader = engine.make_private(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
        )
        losses = []
        for (inputs,) in loader:
            optimizer.zero_grad()
            loss = ((private(inputs) - inputs) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        loss, spent = float(np.mean(losses)), float(engine.get_epsilon(1e-5))
    metrics = MetricRecord({"num-examples": 64, "loss": loss, "epsilon": spent})
    arrays = ArrayRecord(module.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(5)
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(
        grid,
        ArrayRecord(Autoencoder().state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
        train_config=ConfigRecord({"lr": 0.1}),
    )
    trained = {str(n): dict(m) for n, m in result.train_metrics_clientapp.items()}
    torch.save(result.arrays.to_torch_state_dict(), "final.pt")
    with open("result.json", "w") as file:
        json.dump({"trained": trained}, file)
