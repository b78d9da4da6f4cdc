"""A task at one site: its data stay loaded between messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from ...errors import NOTHING_TO_EVALUATE, ProtocolError
from ...flower.messages import arrays_to_params, params_to_arrays, records_in
from ...privacy.dp.example_level import ExampleTerms
from ...privacy.dp.mechanisms.clipping import Clipping
from ...privacy.dp.noise_terms import NoiseTerms
from ...task import Site, Task
from ..algorithms.algorithms import local_algorithm
from ..algorithms.corrections import Corrections
from ..algorithms.personalization import (
    PERSONALIZATIONS,
    Personalization,
    PersonalizationBench,
    evaluate_own,
)
from ..algorithms.work import WORKS
from ..algorithms.work_bench import WorkBench
from ..batches import samples_in
from ..module_params import params_of_module
from ..settings import TrainingSettings
from ..site_data import SiteData
from ..warm_module import WarmModule
from .clipped_reply import clipped_reply
from .session import LocalSession, without_auxiliary
from .training import LocalTraining, Round

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["LocalSite"]


Trained = tuple[int, dict[str, float], ArrayRecord]
"""How many examples there were, the metrics, and the arrays of the reply."""


class LocalSite:
    """Answers a server's messages with one site's data, which are loaded when first needed."""

    def __init__(
        self, task: Task, site: Site, *, training: LocalTraining, module: WarmModule, copies: bool
    ) -> None:
        self._task = task
        self._site = site
        self._training = training
        self._module = module
        self._copies = copies
        self._data = SiteData(task, site, training.device)

    def train(self, message: Message, *, client: int, state: RecordDict) -> Message:
        """Train from the message's params; the reply has the new ones and "num-examples".

        `state` is what the client keeps between messages: some algorithms change it.
        """
        config, arrays = _config(message), _arrays(message)
        settings = TrainingSettings.of(config)
        if (terms := ExampleTerms.of(config)) is not None:
            examples, means, trained = self._train_dp_sgd(arrays, settings, terms, client)
        elif settings.algorithm in WORKS:
            bench, sent = self._work_bench(settings, client, message), arrays_to_params(arrays)
            examples, means, made = WORKS[settings.algorithm].answer(bench, sent)
            trained = params_to_arrays(made)
        elif settings.algorithm == "plain":
            key = (message.metadata.run_id, message.metadata.message_id)
            module, examples, means = self._training.train(
                self._round(arrays, settings, client, key=key)
            )
            trained = params_to_arrays(params_of_module(module, copy=self._copies))
        else:
            answer = (
                self._train_personalized
                if settings.algorithm in PERSONALIZATIONS
                else self._train_session
            )
            examples, means, trained = answer(arrays, settings, client, state)
        metrics = MetricRecord({"num-examples": examples, **means})
        clipping = Clipping.of(config)
        if clipping is not None:
            noise = NoiseTerms.of(config)
            trained, metrics = clipped_reply(arrays, trained, clipping, noise, copy=self._copies)
        return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)

    def _round(
        self,
        arrays: ArrayRecord,
        settings: TrainingSettings,
        client: int,
        *,
        data: Data | None = None,
        key: tuple[object, ...] = (),
        begin: Callable[[torch.nn.Module], Corrections] | None = None,
        dp_sgd: ExampleTerms | None = None,
    ) -> Round:
        """Return what is to be done as the owner's [device] says, with the training data unless
        others are given."""
        return Round(
            site=self._site,
            data=self._data.loaded().train if data is None else data,
            settings=settings,
            client=client,
            load=lambda generation: self._module.with_params(
                arrays, seed=settings.seed, generation=generation
            ),
            key=key,
            begin=begin,
            dp_sgd=dp_sgd,
        )

    def _train_dp_sgd(
        self, arrays: ArrayRecord, settings: TrainingSettings, terms: ExampleTerms, client: int
    ) -> Trained:
        """Train so that nobody sees single records; no loss or metric leaves, nor what it took of the
        device, which depends on how many records the coins chose."""
        if settings.algorithm != "plain":
            raise ProtocolError(f"algorithm {settings.algorithm!r} does not train by DP-SGD")
        work = self._round(arrays, settings, client, dp_sgd=terms)
        module, examples, _ = self._training.train(work)
        return examples, {}, params_to_arrays(params_of_module(module, copy=self._copies))

    def _train_session(
        self, arrays: ArrayRecord, settings: TrainingSettings, client: int, state: RecordDict
    ) -> Trained:
        """Train under an algorithm that asks for more."""
        name = f"algorithm {settings.algorithm!r}"
        self._training.require_whole(name, "corrects the steps")
        algorithm, own = local_algorithm(settings), {}
        sent, loss = without_auxiliary(arrays, algorithm), 0.0
        if algorithm.needs_losses:
            before = self._round(sent, settings, client)
            loss = self._training.evaluate(before, "train")[1]["loss"]

        def begin(module: torch.nn.Module) -> Corrections:
            own["session"] = LocalSession(algorithm, module, arrays, state)
            return own["session"].corrections

        work = self._round(sent, settings, client, begin=begin)
        _, examples, means = self._training.train(work)
        return examples, means, own["session"].finish(loss=loss, copy=self._copies)

    def _train_personalized(
        self, arrays: ArrayRecord, settings: TrainingSettings, client: int, state: RecordDict
    ) -> Trained:
        settings = self._training.alone(settings)
        bench, data = self._bench(settings, client, state), self._data.loaded().train
        personalization = PERSONALIZATIONS[settings.algorithm]
        examples, means, params = personalization.train(bench, arrays_to_params(arrays), data)
        return examples, means, params_to_arrays(params)

    def _bench(
        self, settings: TrainingSettings, client: int, state: RecordDict
    ) -> PersonalizationBench:
        return PersonalizationBench(
            task=self._task,
            module=self._module,
            device=self._training.device,
            client=client,
            settings=settings,
            state=state,
        )

    def _work_bench(self, settings: TrainingSettings, client: int, message: Message) -> WorkBench:
        return WorkBench(
            task=self._task,
            data=self._data.loaded(),
            module=self._module,
            client=client,
            device=self._training.device,
            settings=self._training.alone(settings),
            config=_config(message),
        )

    def evaluate(self, message: Message, *, client: int, state: RecordDict) -> Message:
        """Evaluate the message's params on this site's test data, if it has any.

        Where clients have params of their own, or are asked to tune the common ones to their
        training data, the metrics of those are there too, as "personal-loss".
        """
        settings = TrainingSettings.of(_config(message))
        data = self._data.loaded().test
        if data is None or not samples_in(data):
            nothing = Error(NOTHING_TO_EVALUATE, f"site {self._site.index} has no test data")
            return Message(nothing, reply_to=message)
        personalization = PERSONALIZATIONS.get(settings.algorithm)
        if settings.algorithm in WORKS:
            bench, sent = (
                self._work_bench(settings, client, message),
                arrays_to_params(_arrays(message)),
            )
            examples, means = WORKS[settings.algorithm].measure(bench, sent, data)
        elif personalization is None and not settings.tuning_epochs:
            work = self._round(_arrays(message), settings, client, data=data)
            examples, means = self._training.evaluate(work, "test")
        else:
            examples, means = evaluate_own(
                self._bench(self._training.alone(settings), client, state),
                personalization or Personalization(),
                arrays_to_params(_arrays(message)),
                train_data=self._data.loaded().train,
                test_data=data,
            )
        metrics = MetricRecord({"num-examples": examples, **means})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def count(self, message: Message) -> Message:
        """Say how many samples there are."""
        data = self._data.loaded()
        metrics = MetricRecord(
            {
                "num-examples": samples_in(data.train),
                "num-test-examples": 0 if data.test is None else samples_in(data.test),
            }
        )
        return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _arrays(message: Message) -> ArrayRecord:
    records = records_in(message.content, ArrayRecord)
    if len(records) != 1:
        raise ProtocolError(f"an instruction must carry one ArrayRecord, got {len(records)}")
    return records[0]


def _config(message: Message) -> Mapping[str, Any]:
    records = records_in(message.content, ConfigRecord)
    if len(records) <= 1:
        return records[0] if records else {}
    named = message.content.get("config")
    if not isinstance(named, ConfigRecord):
        raise ProtocolError(f"an instruction must carry one ConfigRecord, got {len(records)}")
    return named
