"""What a site does when instructed to train or to evaluate: a class for each kind of local work.

The site calls the same methods under every algorithm; `work_for` chooses the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from flwr.app import ArrayRecord, RecordDict

from ...errors import ProtocolError
from ...flower.messages import arrays_to_params
from ...privacy.dp.example_level import ExampleTerms
from ...randomness.seeded import seeded
from ...randomness.seeds import derive
from ...strategies.algorithms.algorithm import Params
from ...task import Site, Task
from ..algorithms.algorithms import LocalAlgorithm
from ..algorithms.client_half import client_half
from ..algorithms.corrections import Corrections
from ..algorithms.personalization import (
    Personalization,
    PersonalizationBench,
    evaluate_own,
)
from ..algorithms.work_bench import LocalWork, WorkBench
from ..loop.trainer import Draws
from ..module_params import params_of_module
from ..settings import TrainingSettings
from ..site_data import SiteData
from ..warm_module import WarmModule
from .session import LocalSession, without_auxiliary
from .training import LocalTraining, Round

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["Assignment", "SiteWork", "Trained", "work_for"]

Trained = tuple[int, dict[str, float], Params | ArrayRecord]
"""How many examples there were, the metrics, and the params, or arrays, of the reply."""


@dataclass(slots=True, kw_only=True)
class Assignment:
    """An instruction, and what the site has to follow it.

    Attributes:
        copies: whether arrays of the reply have memory of their own.
        config: the instruction's, all of it; `settings` are the training's in it.
        state: what the client keeps between messages; some work changes it.
        draws: those of a training, if they are known already.
        key: what tells this instruction from others, and is the same when it is repeated.
    """

    task: Task
    site: Site
    data: SiteData
    training: LocalTraining
    module: WarmModule
    copies: bool
    client: int
    settings: TrainingSettings
    config: Mapping[str, Any]
    arrays: ArrayRecord
    key: tuple[object, ...]
    state: RecordDict = field(default_factory=RecordDict)
    draws: Draws | None = None

    def round(self, data: Data | None = None, **more: Any) -> Round:
        """Return what is to be done as the owner's [device] says, with the training data unless
        others are given; `more` are further fields of the round."""
        arrays: ArrayRecord = more.pop("arrays", self.arrays)
        seed = self.settings.seed
        draws = self.draws if data is None else None
        return Round(
            site=self.site,
            data=self.data.loaded().train if data is None else data,
            settings=self.settings,
            client=self.client,
            load=lambda generation: self.module.with_params(
                arrays, seed=seed, generation=generation
            ),
            **{"key": (), "draws": draws, **more},
        )

    def params_of(self, module: torch.nn.Module) -> Params:
        """Return the params of a module for the reply."""
        return params_of_module(module, copy=self.copies)


class SiteWork(Protocol):
    """A kind of local work."""

    def train(self, given: Assignment) -> Trained:
        """Train from the params that were sent."""

    def evaluate(self, given: Assignment, data: Data) -> tuple[int, dict[str, float]]:
        """Return the number of examples, and the metrics on the site's test data."""


class Training:
    """Steps along the gradient of the task's loss alone."""

    def train(self, given: Assignment) -> Trained:
        """As `SiteWork.train`."""
        module, examples, means = given.training.train(given.round(key=given.key))
        return examples, means, given.params_of(module)

    def evaluate(self, given: Assignment, data: Data) -> tuple[int, dict[str, float]]:
        """As `SiteWork.evaluate`; clients may be asked to tune the params to their own data first."""
        if given.settings.tuning_epochs:
            return PersonalizedTraining(Personalization()).evaluate(given, data)
        return given.training.evaluate(given.round(data), "test")


class PrivateTraining(Training):
    """DP-SGD: nobody sees single examples; no loss or metric leaves, nor what it took of the device,
    which depends on how many examples were sampled."""

    def __init__(self, terms: ExampleTerms) -> None:
        self._terms = terms

    def train(self, given: Assignment) -> Trained:
        """As `SiteWork.train`.

        Raises:
            ProtocolError: the algorithm asks for more than plain steps.
        """
        if given.settings.algorithm != "plain":
            raise ProtocolError(f"algorithm {given.settings.algorithm!r} does not train by DP-SGD")
        module, examples, _ = given.training.train(given.round(dp_sgd=self._terms))
        return examples, {}, given.params_of(module)


class CorrectedTraining(Training):
    """Steps that an algorithm corrects, by what was sent beside the params and what the client keeps."""

    def __init__(self, algorithm: LocalAlgorithm) -> None:
        self._algorithm = algorithm

    def train(self, given: Assignment) -> Trained:
        """As `SiteWork.train`.

        Raises:
            DataError: the algorithm's own loss needs one device, and there are several.
        """
        named, sessions = f"algorithm {given.settings.algorithm!r}", []
        given.training.require_whole(named, "corrects the steps")
        if self._algorithm.has_loss:
            given.training.require_one_device(f"the loss of {named}")
        sent, loss = self._begun(given)

        def begin(module: torch.nn.Module) -> Corrections:
            sessions.append(LocalSession(self._algorithm, module, given.arrays, given.state))
            return sessions[-1].corrections

        try:
            _, examples, means = given.training.train(given.round(arrays=sent, begin=begin))
        finally:
            for session in sessions:
                session.corrections.close()
        return examples, means, sessions[-1].finish(loss=loss, copy=given.copies)

    def _begun(self, given: Assignment) -> tuple[ArrayRecord, float]:
        """Return the model's own arrays, and the loss before the round where it is needed."""
        sent = without_auxiliary(given.arrays, self._algorithm)
        if not self._algorithm.needs_losses:
            return sent, 0.0
        return sent, given.training.evaluate(given.round(arrays=sent), "train")[1]["loss"]


class OwnTraining(CorrectedTraining):
    """Training whose steps an algorithm makes itself."""

    def train(self, given: Assignment) -> Trained:
        """As `SiteWork.train`.

        Raises:
            DataError: there are several devices.
        """
        settings = given.training.alone(given.settings)
        given.training.require_one_device(
            f"algorithm {settings.algorithm!r}, which makes its steps,"
        )
        sent, loss = self._begun(given)
        module = given.module.with_params(sent, seed=settings.seed)
        session = LocalSession(self._algorithm, module, given.arrays, given.state)
        device, data = given.training.device, given.data.loaded().train
        bench = session.bench(given.task, data, settings, client=given.client, device=device)
        stream = derive(settings.stream, settings.server_round, given.client, "training")
        with seeded(stream, device):
            self._algorithm.train(bench)
        session.corrections.steps = bench.steps
        return bench.examples, bench.means(), session.finish(loss=loss, copy=given.copies)


class PersonalizedTraining:
    """Training of params of which some are the client's own."""

    def __init__(self, personalization: Personalization) -> None:
        self._personalization = personalization

    def train(self, given: Assignment) -> Trained:
        """As `SiteWork.train`."""
        bench = self._bench(given)
        sent, data = arrays_to_params(given.arrays), given.data.loaded().train
        examples, means, params = self._personalization.train(bench, sent, data)
        return examples, means, params

    def evaluate(self, given: Assignment, data: Data) -> tuple[int, dict[str, float]]:
        """As `SiteWork.evaluate`; the metrics of the client's own params are "personal-loss" ..."""
        return evaluate_own(
            self._bench(given),
            self._personalization,
            arrays_to_params(given.arrays),
            train_data=given.data.loaded().train,
            test_data=data,
        )

    def _bench(self, given: Assignment) -> PersonalizationBench:
        return PersonalizationBench(
            task=given.task,
            module=given.module,
            device=given.training.device,
            client=given.client,
            settings=given.training.alone(given.settings),
            state=given.state,
        )


class OtherWork:
    """Work of an algorithm that does not train the whole model by gradients."""

    def __init__(self, work: LocalWork) -> None:
        self._work = work

    def train(self, given: Assignment) -> Trained:
        """As `SiteWork.train`."""
        sent = arrays_to_params(given.arrays)
        examples, means, made = self._work.answer(self._bench(given), sent)
        return examples, means, made

    def evaluate(self, given: Assignment, data: Data) -> tuple[int, dict[str, float]]:
        """As `SiteWork.evaluate`."""
        return self._work.measure(self._bench(given), arrays_to_params(given.arrays), data)

    def _bench(self, given: Assignment) -> WorkBench:
        return WorkBench(
            task=given.task,
            data=given.data.loaded(),
            module=given.module,
            client=given.client,
            device=given.training.device,
            settings=given.training.alone(given.settings),
            config=given.config,
        )


def work_for(settings: TrainingSettings, task: Task, terms: ExampleTerms | None = None) -> SiteWork:
    """Return the work of the algorithm that an instruction names, or under example-level privacy
    that of its `terms`.

    Raises:
        ProtocolError: this process has no such algorithm.
    """
    if terms is not None:
        return PrivateTraining(terms)
    if settings.algorithm == "plain":
        return Training()
    half = client_half(settings, task)
    if isinstance(half, Personalization):
        return PersonalizedTraining(half)
    if isinstance(half, LocalWork):
        return OtherWork(half)
    return OwnTraining(half) if half.trains_itself else CorrectedTraining(half)
