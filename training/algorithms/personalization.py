"""The clients' halves of the algorithms under which a client has params of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import RecordDict
from numpy.typing import NDArray

from ...errors import ProtocolError
from ...flower.messages import arrays_to_params, params_to_arrays
from ...strategies.algorithms.algorithm import Params
from ...strategies.algorithms.auxiliary_names import auxiliary_name, of_kind
from ...strategies.algorithms.ifca import MEMBERS, cluster_kind
from ..evaluation import evaluate
from ..loop.optimizers import Slots
from ..loop.trainer import Session, train
from ..module_params import params_of_module
from ..objectives import proximal
from ..settings import TrainingSettings
from ..warm_module import WarmModule

if TYPE_CHECKING:
    from ...task import Data, Task

__all__ = ["Personalization", "PersonalizationBench", "evaluate_own"]

PERSONAL_STATE = "personal"
"""The record of a client's state that its own params are in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalizationBench:
    """What a client trains with.

    Attributes:
        state: the client state, which includes its own params.
    """

    task: Task
    module: WarmModule
    device: str
    client: int
    settings: TrainingSettings
    state: RecordDict

    def train(
        self,
        params: Params,
        data: Data,
        *,
        epochs: int | None = None,
        session: Callable[[torch.nn.Module], Session] | None = None,
    ) -> tuple[int, dict[str, float], Params]:
        """Train from these params; returns the examples, the metrics and the new params."""
        settings = self.settings if epochs is None else replace(self.settings, epochs=epochs)
        module = self.module.with_some(params, seed=settings.seed)
        examples, means = train(
            self.task,
            module,
            data,
            settings,
            client=self.client,
            device=self.device,
            session=None if session is None else session(module),
        )
        return examples, means, params_of_module(module)

    def measure(self, params: Params, data: Data) -> tuple[int, dict[str, float]]:
        """Return the number of examples, and the metrics of these params."""
        settings = self.settings
        module = self.module.with_some(params, seed=settings.seed)
        return evaluate(self.task, module, data, batch_size=settings.batch_size, device=self.device)

    def client_state(self) -> dict[str, NDArray[np.generic]]:
        """Return the client's own params; none before its first round."""
        record = self.state.array_records.get(PERSONAL_STATE)
        return {} if record is None else arrays_to_params(record)

    def keep_state(self, params: Params) -> None:
        """Keep params of its own; they never leave the client."""
        self.state[PERSONAL_STATE] = params_to_arrays(params)


class Personalization:
    """FedPer and FedBN: params that the server does not send are the client's own."""

    def train(
        self, bench: PersonalizationBench, sent: Params, data: Data
    ) -> tuple[int, dict[str, float], Params]:
        """Train; returns the examples, the metrics, and what is answered: the names of `sent`."""
        examples, means, params = bench.train({**bench.client_state(), **sent}, data)
        return examples, means, self._divided(bench, sent, params)

    def common(self, sent: Params) -> Params:
        """Return the params that all clients have in common."""
        return sent

    def own(self, bench: PersonalizationBench, sent: Params, data: Data) -> Params:
        """Return the params that this client would use."""
        return {**bench.client_state(), **sent}

    def _divided(self, bench: PersonalizationBench, sent: Params, params: Params) -> Params:
        bench.keep_state({name: values for name, values in params.items() if name not in sent})
        return {name: params[name] for name in sent}


class FedRep(Personalization):
    """Trains the client's own layers alone, and then the shared ones alone."""

    def train(
        self, bench: PersonalizationBench, sent: Params, data: Data
    ) -> tuple[int, dict[str, float], Params]:
        mine = {**bench.client_state(), **sent}
        _, _, head = bench.train(
            mine,
            data,
            epochs=bench.settings.head_epochs,
            session=lambda module: _Only(module, lambda name: name not in sent),
        )
        # shared params begin as they were sent: a norm's statistics have moved
        examples, means, params = bench.train(
            {**head, **sent}, data, session=lambda module: _Only(module, sent.__contains__)
        )
        return examples, means, self._divided(bench, sent, params)


class Ditto(Personalization):
    """Trains the common params, and then its own near them."""

    def train(
        self, bench: PersonalizationBench, sent: Params, data: Data
    ) -> tuple[int, dict[str, float], Params]:
        mu = bench.settings.ditto_lambda
        before = bench.module.with_some(sent, seed=bench.settings.seed)
        starts = [param.detach().clone() for param in before.parameters()]
        examples, means, params = bench.train(sent, data)
        _, _, own = bench.train(
            self.own(bench, sent, data), data, session=lambda module: _Near(module, starts, mu)
        )
        bench.keep_state(own)
        return examples, means, {name: params[name] for name in sent}

    def own(self, bench: PersonalizationBench, sent: Params, data: Data) -> Params:
        return bench.client_state() or sent


class Ifca(Personalization):
    """Trains the cluster that fits its data best."""

    def train(
        self, bench: PersonalizationBench, sent: Params, data: Data
    ) -> tuple[int, dict[str, float], Params]:
        chosen = self._chosen(bench, sent, data)
        examples, means, params = bench.train(of_kind(chosen, sent), data)
        answer: dict[str, NDArray[Any]] = dict(sent)
        answer |= {auxiliary_name(chosen, name): values for name, values in params.items()}
        answer[auxiliary_name(MEMBERS, chosen)] = np.ones((), np.float64)
        return examples, {**means, "cluster": float(chosen.rpartition("-")[2])}, answer

    def common(self, sent: Params) -> Params:
        return of_kind(cluster_kind(0), sent)

    def own(self, bench: PersonalizationBench, sent: Params, data: Data) -> Params:
        return of_kind(self._chosen(bench, sent, data), sent)

    def _chosen(self, bench: PersonalizationBench, sent: Params, data: Data) -> str:
        """Return the cluster with the least loss on the training data."""
        kinds = sorted(of_kind(MEMBERS, sent))
        if not kinds:
            raise ProtocolError(f"algorithm 'ifca' needs clusters; there is no {MEMBERS!r} tensor")
        losses = [bench.measure(of_kind(kind, sent), data)[1]["loss"] for kind in kinds]
        return kinds[int(np.argmin(losses))]


class _TaskLoss:
    """A session along the task's loss."""

    slots: Slots | None = None
    has_loss = False

    def losses(
        self,
        inputs: torch.Tensor,
        outputs: torch.Tensor,
        targets: torch.Tensor,
        task_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        return task_loss(outputs, targets)


class _Only(_TaskLoss):
    """Lets gradients move only the params whose names are chosen."""

    def __init__(self, module: torch.nn.Module, chosen: Callable[[str], bool]) -> None:
        self._still = [param for name, param in module.named_parameters() if not chosen(name)]

    def correct(self) -> None:
        for param in self._still:
            param.grad = None


class _Near(_TaskLoss):
    """Pulls the params towards others."""

    def __init__(self, module: torch.nn.Module, others: list[torch.Tensor], mu: float) -> None:
        self._pairs = list(zip(module.parameters(), others, strict=True))
        self._mu = mu

    def correct(self) -> None:
        for param, other in self._pairs:
            if param.grad is not None:
                param.grad = proximal(param.grad, param.detach(), other, mu=self._mu)


def evaluate_own(
    bench: PersonalizationBench,
    personalization: Personalization,
    sent: Params,
    *,
    train_data: Data,
    test_data: Data,
) -> tuple[int, dict[str, float]]:
    """Return the number of test examples, the metrics of the common params, and of the client's.

    If configured, the client's params are first tuned on its training data; the result is not
    kept.
    """
    examples, means = bench.measure(personalization.common(sent), test_data)
    own = personalization.own(bench, sent, train_data)
    if epochs := bench.settings.tuning_epochs:
        _, _, own = bench.train(own, train_data, epochs=epochs)
    _, theirs = bench.measure(own, test_data)
    return examples, {**means, **{f"personal-{name}": mean for name, mean in theirs.items()}}
