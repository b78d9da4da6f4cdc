"""`client_app(task)`: a Flower ClientApp that trains and evaluates a task on one site's data."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ..errors import DataError, ProtocolError
from ..flower import arrays_to_params, params_to_arrays
from ..simulations.partition import Partition
from ..task import ClientData, Site, Task

if TYPE_CHECKING:
    import torch

__all__ = ["LocalSite", "client_app", "site_of"]

SITES_KEPT_MAX = 1024
DEVICE_VARIABLE = "MEADOW_DEVICE"
_OWN_KEYS = ("site-index", "site-count", "partition-id", "num-partitions")


def client_app(task: Task, *, device: str | None = None) -> ClientApp:
    """Return a Flower ClientApp for `task`; it also runs under Flower alone.

    It answers "train" with the params after training, "evaluate" with metrics, and "query" with
    the numbers of samples. Which site it is, the Context says: `node_config["site-index"]` and
    `["site-count"]`, or Flower's "partition-id" and "num-partitions".
    """
    sites: OrderedDict[tuple[Any, ...], LocalSite] = OrderedDict()
    modules: list[torch.nn.Module] = []
    app = ClientApp()

    def local(context: Context) -> LocalSite:
        site = site_of(context)
        key = (site.index, site.count, site.partition, site.seed, tuple(site.config.items()))
        if key not in sites:
            sites[key] = LocalSite(task, site, device=device, modules=modules)
            if len(sites) > SITES_KEPT_MAX:
                sites.popitem(last=False)
        sites.move_to_end(key)
        return sites[key]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return local(context).train(message, client=context.node_id)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return local(context).evaluate(message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return local(context).count(message)

    return app


def site_of(context: Context) -> Site:
    """Return the site that a Context belongs to.

    Raises:
        ProtocolError: the Context names no site.
    """
    node, run = context.node_config, context.run_config
    index = node.get("site-index", node.get("partition-id"))
    count = node.get("site-count", node.get("num-partitions"))
    if type(index) is not int or type(count) is not int or not 0 <= index < count:
        raise ProtocolError(
            f"site-index {index!r} of site-count {count!r} is no site; set data.index and "
            "data.count in client.toml"
        )
    return Site(
        index=index,
        count=count,
        config={key: value for key, value in node.items() if key not in _OWN_KEYS},
        partition=_partition(run),
        seed=_whole(run.get("partition-seed", 0)),
    )


def _partition(run: Mapping[str, Any]) -> Partition:
    if "partition" not in run:
        return Partition()
    return Partition(
        kind=run["partition"],
        alpha=float(run.get("partition-alpha", 0.5)),
        classes_per_client=_whole(run.get("partition-classes-per-client", 2)),
    )


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ProtocolError(f"a whole number is needed, got {value!r}")
    return value


class LocalSite:
    """A task at one site: the data stay loaded, and the module is shared by a process's sites."""

    def __init__(
        self, task: Task, site: Site, *, device: str | None, modules: list[torch.nn.Module]
    ) -> None:
        from .trainer import choose_device

        self._task = task
        self._site = site
        self._modules = modules
        self._device = choose_device(device or os.environ.get(DEVICE_VARIABLE, "auto"))
        self._data: ClientData | None = None

    @property
    def data(self) -> ClientData:
        """This site's data, loaded when it is first asked for.

        Raises:
            DataError: the task's `client_data` gives something else.
        """
        if self._data is None:
            data = self._task.client_data(self._site)
            if not isinstance(data, ClientData):
                kind = type(data).__name__
                raise DataError(f"client_data must return a meadow.ClientData, got a {kind}")
            self._data = data
        return self._data

    def _module(self, arrays: ArrayRecord) -> torch.nn.Module:
        from ..module_params import load_params

        if not self._modules:
            self._modules.append(self._task.model().to(self._device))
        load_params(self._modules[0], arrays_to_params(arrays))
        return self._modules[0]

    def train(self, message: Message, *, client: int) -> Message:
        """Train from the message's params; the reply has the new ones and "num-examples"."""
        from ..module_params import params_of_module
        from .trainer import train
        from .training_settings import TrainingSettings

        settings = TrainingSettings.of(_config(message))
        module = self._module(_arrays(message))
        samples, means = train(
            self._task, module, self.data.train, settings, client=client, device=self._device
        )
        content = RecordDict(
            {
                "arrays": params_to_arrays(params_of_module(module)),
                "metrics": MetricRecord({"num-examples": samples, **means}),
            }
        )
        return Message(content, reply_to=message)

    def evaluate(self, message: Message) -> Message:
        """Evaluate the message's params on this site's test data."""
        from ..evaluation import evaluate

        if self.data.test is None:
            raise DataError(f"site {self._site.index} has no test data (ClientData.test)")
        batch_size = _whole(_config(message).get("batch-size", 256))
        module = self._module(_arrays(message))
        samples, means = evaluate(
            self._task, module, self.data.test, batch_size=batch_size, device=self._device
        )
        metrics = MetricRecord({"num-examples": samples, **means})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def count(self, message: Message) -> Message:
        """Say how many samples there are."""
        train, test = self.samples()
        metrics = MetricRecord({"num-examples": train, "num-test-examples": test})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def samples(self) -> tuple[int, int]:
        """Return the numbers of training and test samples."""
        from ..batches import samples_in

        test = self.data.test
        return samples_in(self.data.train), 0 if test is None else samples_in(test)


def _arrays(message: Message) -> ArrayRecord:
    records = message.content.array_records
    if len(records) != 1:
        raise ProtocolError(f"an instruction must carry one ArrayRecord, got {len(records)}")
    return next(iter(records.values()))


def _config(message: Message) -> Mapping[str, Any]:
    record = message.content.config_records.get("config")
    return {} if record is None else dict(record)
