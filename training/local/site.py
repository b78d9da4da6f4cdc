"""A task at one site: its data stay loaded between messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from ...errors import NOTHING_TO_EVALUATE, NothingLearnedError, ProtocolError
from ...flower.messages import metrics_record, record_dict, records_in, reply_with, values_in
from ...privacy.dp.example_level import ExampleTerms
from ...privacy.dp.mechanisms.clipping import Clipping
from ...privacy.dp.noise_terms import NoiseTerms
from ...task import Site, Task
from ..batches import samples_in
from ..settings import TrainingSettings
from ..site_data import SiteData
from ..warm_module import WarmModule
from .clipped_reply import clipped_reply
from .training import LocalTraining
from .work import Assignment, work_for

__all__ = ["LocalSite"]


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
        config = _config(message)
        given = self._assignment(message, config, client, state)
        work = work_for(given.settings, self._task, ExampleTerms.of(config))
        clipping, noise = Clipping.of(config), NoiseTerms.of(config)
        try:
            examples, means, trained = work.train(given)
        except NothingLearnedError as error:
            if clipping is None or noise is None or noise.place == "server":
                raise
            # a failure would reveal something about the data: the reply is like any other client's
            logging.getLogger(__name__).warning("this round has no change of the params: %s", error)
            examples, means, trained = 1, {}, given.arrays
        metrics = metrics_record({"num-examples": examples, **means})
        if clipping is not None:
            trained, metrics = clipped_reply(
                given.arrays, trained, clipping, noise, copy=self._copies
            )
        return reply_with(record_dict({"arrays": trained, "metrics": metrics}), message)

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
        given = self._assignment(message, config, client, state)
        examples, means = work_for(given.settings, self._task).evaluate(given, data)
        metrics = metrics_record({"num-examples": examples, **means})
        return reply_with(record_dict({"metrics": metrics}), message)

    def _assignment(
        self, message: Message, config: Mapping[str, Any], client: int, state: RecordDict
    ) -> Assignment:
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
            state=state,
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
