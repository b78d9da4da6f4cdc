"""Federated averaging of softmax regression on digits, with FedML's single-process simulation."""

import digits
import fedml
import torch
from fedml import FedMLRunner, mlops


def network() -> torch.nn.Linear:
    """Make the model, beginning with zeros."""
    model = torch.nn.Linear(64, 10)
    for param in model.parameters():
        torch.nn.init.zeros_(param)
    return model


def loader(examples: digits.Examples, args) -> torch.utils.data.DataLoader:
    """Make batches."""
    pair = torch.utils.data.TensorDataset(*map(torch.from_numpy, examples))
    return torch.utils.data.DataLoader(pair, batch_size=args.batch_size)


def load_data(args) -> list:
    """Make what FedML calls a data set: eight parts, of which simulation reads some."""
    clients = range(args.client_num_in_total)
    train = {index: loader(digits.client(index), args) for index in clients}
    sizes = {index: len(batches.dataset) for index, batches in train.items()}
    test = dict.fromkeys(clients) | {0: loader(digits.holdout(), args)}  # evaluated once a round
    return [sum(sizes.values()), digits.HOLDOUT, None, None, sizes, train, test, 10]


if __name__ == "__main__":
    args = fedml.init(should_init_logs=False)
    accuracies = []
    told = mlops.log

    def log(metrics: dict, **others) -> None:
        """Keep what FedML reports."""
        told(metrics, **others)
        accuracies.extend(value for name, value in metrics.items() if name == "Test/Acc")

    mlops.log = log
    model = network()
    FedMLRunner(args, fedml.device.get_device(args), load_data(args), model).run()
    digits.report(accuracies, *(param.detach().numpy() for param in model.parameters()))
