"""A task at one site: its data stay loaded between messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict

from ..batches import samples_in
from ..errors import NOTHING_TO_EVALUATE, ProtocolError
from ..evaluation import evaluate
from ..flower import params_to_arrays
from ..module_params import params_of_module
from ..task import Site, Task
from .local_training import LocalTraining, Round
from .site_data import SiteData
from .training_settings import TrainingSettings
from .warm_module import WarmModule

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

    def train(self, message: Message, *, client: int) -> Message:
        """Train from the message's params; the reply has the new ones and "num-examples"."""
        settings = TrainingSettings.of(_config(message))
        arrays = _arrays(message)
        round_ = Round(
            site=self._site,
            data=self._data.loaded().train,
            settings=settings,
            client=client,
            load=lambda generation: self._module.with_params(
                arrays, seed=settings.seed, generation=generation
            ),
            key=(message.metadata.run_id, message.metadata.message_id),
        )
        module, examples, means = self._training.train(round_)
        metrics = MetricRecord({"num-examples": examples, **means})
        trained = params_to_arrays(params_of_module(module, copy=self._copies))
        return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)

    def evaluate(self, message: Message) -> Message:
        """Evaluate the message's params on this site's test data, if it has any."""
        settings = TrainingSettings.of(_config(message))
        data = self._data.loaded().test
        if data is None or not samples_in(data):
            nothing = Error(NOTHING_TO_EVALUATE, f"site {self._site.index} has no test data")
            return Message(nothing, reply_to=message)
        module = self._module.with_params(
            _arrays(message), seed=settings.seed, generation=self._training.generation
        )
        examples, means = evaluate(
            self._task,
            module,
            data,
            batch_size=settings.batch_size,
            device=self._training.module_device,
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
    records = message.content.array_records
    if len(records) != 1:
        raise ProtocolError(f"an instruction must carry one ArrayRecord, got {len(records)}")
    return next(iter(records.values()))


def _config(message: Message) -> Mapping[str, Any]:
    records = message.content.config_records
    if len(records) > 1 and "config" not in records:
        raise ProtocolError(f"an instruction must carry one ConfigRecord, got {len(records)}")
    return records["config"] if "config" in records else next(iter(records.values()), {})
