"""Federated averaging of softmax regression on digits, with pfl-research."""

import digits
import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel


class Softmax(torch.nn.Linear):
    """The model, with the two methods that pfl calls."""

    def reset_parameters(self) -> None:
        for param in self.parameters():
            torch.nn.init.zeros_(param)

    def loss(self, inputs, targets):
        return torch.nn.functional.cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs, targets):
        right = (self(inputs).argmax(dim=1) == targets).sum().item()
        return {"accuracy": Weighted(right, len(targets))}


class Accuracy(TrainingProcessCallback):
    """Evaluates after every round on the digits that no client has."""

    def __init__(self) -> None:
        self.values = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        metrics = model.evaluate(dataset(digits.holdout()), str)
        self.values.append(metrics["accuracy"].overall_value)
        return False, Metrics()


def dataset(examples: digits.Examples) -> PyTorchTensorDataset:
    """Make a user's data set."""
    return PyTorchTensorDataset(tuple(map(torch.from_numpy, examples)))


if __name__ == "__main__":
    np.random.seed(0)
    softmax = Softmax(64, 10)
    users = MinimizeReuseUserSampler(range(digits.CLIENTS))
    federated = FederatedDataset(lambda user: dataset(digits.client(user)), users)
    accuracy = Accuracy()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=10,
            evaluation_frequency=100,
            train_cohort_size=digits.CLIENTS,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(federated, federated, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(
            model=softmax,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(softmax.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=5, local_learning_rate=0.5, local_batch_size=None
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[accuracy],
        send_metrics_to_platform=False,
    )
    digits.report(accuracy.values, *(param.detach().numpy() for param in softmax.parameters()))
