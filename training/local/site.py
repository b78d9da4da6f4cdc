"""A task at one site: its data stay loaded between messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from ...errors import NOTHING_TO_EVALUATE, NothingLearnedError, ProtocolError
from ...flower.messages import (
    metrics_record,
    params_to_arrays,
    record_dict,
    records_in,
    reply_with,
    values_in,
)
from ...privacy.dp.example_level import ExampleTerms
from ...privacy.dp.mechanisms.clipping import Clipping
from ...privacy.dp.noise_terms import NoiseTerms
from ...strategies.algorithms.algorithm import Params
from ...task import Site, Task
from ..batches import samples_in
from ..loop.trainer import draws_of
from ..settings import TrainingSettings
from ..site_data import SiteData
from ..warm_module import WarmModule
from .clipped_reply import clipped_reply
from .training import LocalTraining
from .work import Assignment, SiteWork, Training, work_for

__all__ = ["LocalSite", "SiteTraining"]


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
        training = self.begin(message, client=client)
        training.train(state)
        return training.reply()

    def begin(self, message: Message, *, client: int) -> SiteTraining:
        """Read an instruction to train. Data that are not loaded yet are loaded by `train`."""
        config = _config(message)
        given = self._assignment(message, config, client)
        if self._data.is_loaded:
            given.draws = draws_of(given.settings, client, self._data.loaded().train)
        work = work_for(given.settings, self._task, ExampleTerms.of(config))
        return SiteTraining(message, given, work, Clipping.of(config), NoiseTerms.of(config))

    def evaluate(self, message: Message, *, client: int, state: RecordDict) -> Message:
        """Evaluate the message's params on this site's test data, if it has any.

        Where clients have params of their own, or are asked to tune the common ones to their
        training data, the metrics of those are there too, as "personal-loss".
        """
        config = _config(message)
        data = self._data.loaded().test
        if data is None or not samples_in(data):
            nothing = Error(NOTHING_TO_EVALUATE, f"site {self._site.index} has no test data")
            return Message(nothing, reply_to=message)
        given = self._assignment(message, config, client)
        given.state = state
        examples, means = work_for(given.settings, self._task).evaluate(given, data)
        metrics = metrics_record({"num-examples": examples, **means})
        return reply_with(record_dict({"metrics": metrics}), message)

    def _assignment(self, message: Message, config: Mapping[str, Any], client: int) -> Assignment:
        return Assignment(
            task=self._task,
            site=self._site,
            data=self._data,
            training=self._training,
            module=self._module,
            copies=self._copies,
            client=client,
            settings=TrainingSettings.of(config),
            config=config,
            arrays=_arrays(message),
            key=(message.metadata.run_id, message.metadata.message_id),
        )

    def count(self, message: Message) -> Message:
        """Say how many samples there are."""
        data = self._data.loaded()
        metrics = metrics_record(
            {
                "num-examples": samples_in(data.train),
                "num-test-examples": 0 if data.test is None else samples_in(data.test),
            }
        )
        return reply_with(record_dict({"metrics": metrics}), message)


class SiteTraining:
    """A client's training in a round, once its instruction is read: what takes the time, and the reply."""

    def __init__(
        self,
        message: Message,
        given: Assignment,
        work: SiteWork,
        clipping: Clipping | None,
        noise: NoiseTerms | None,
    ) -> None:
        self._message = message
        self._given = given
        self._work = work
        self._clipping = clipping
        self._noise = noise
        self._trained: tuple[Mapping[str, Any], Params | ArrayRecord] | None = None

    @property
    def draws_alone(self) -> bool:
        """Whether nobody draws random numbers but the training itself: the data are loaded, no algorithm's
        code runs before it or after it, and nothing is logged, as clipping does."""
        plain = type(self._work) is Training and self._clipping is None
        return plain and self._given.draws is not None

    def train(self, state: RecordDict, *, inside: bool = False) -> None:
        """Train, with what the client keeps between messages.

        With `inside`, which needs `draws_alone`, the caller has a `seeded` block around this.
        """
        given, clipping, noise = self._given, self._clipping, self._noise
        if inside:
            assert given.draws is not None
            given.draws = given.draws._replace(inside=True)
        given.state = state
        try:
            examples, means, trained = self._work.train(given)
        except NothingLearnedError as error:
            if clipping is None or noise is None or noise.place == "server":
                raise
            # a failure would reveal something about the data: the reply is like any other client's
            logging.getLogger(__name__).warning("this round has no change of the params: %s", error)
            examples, means, trained = 1, {}, given.arrays
        self._trained = {"num-examples": examples, **means}, trained
        if clipping is not None:
            sent, arrays = given.arrays, _record(trained)
            arrays, metrics = clipped_reply(sent, arrays, clipping, noise, copy=given.copies)
            self._trained = values_in(metrics), arrays

    def reply(self) -> Message:
        """Return the reply; `train` comes before."""
        assert self._trained is not None, "train comes first"
        metrics, trained = self._trained
        records = record_dict({"arrays": _record(trained), "metrics": metrics_record(metrics)})
        return reply_with(records, self._message)


def _record(trained: Params | ArrayRecord) -> ArrayRecord:
    return trained if isinstance(trained, ArrayRecord) else params_to_arrays(trained)


def _arrays(message: Message) -> ArrayRecord:
    records = records_in(message.content, ArrayRecord)
    if len(records) != 1:
        raise ProtocolError(f"an instruction must carry one ArrayRecord, got {len(records)}")
    return records[0]


def _config(message: Message) -> Mapping[str, Any]:
    records = records_in(message.content, ConfigRecord)
    if len(records) > 1:
        named = message.content.get("config")
        if not isinstance(named, ConfigRecord):
            raise ProtocolError(f"an instruction must carry one ConfigRecord, got {len(records)}")
        records = [named]
    return values_in(records[0]) if records else {}
