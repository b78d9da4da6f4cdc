"""`client_app(task)`: a Flower ClientApp that trains and evaluates a task on one site's data."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from ...errors import ProtocolError
from ...partitioning.partition import Partition
from ...task import Site, Task

if TYPE_CHECKING:
    from ...strategies.algorithms.algorithm import Algorithm
    from .site import LocalSite, SiteTraining
    from .training import LocalTraining

__all__ = ["TaskApp", "client_app", "site_in", "site_of"]

SITES_KEPT_MAX = 1024
DEVICE_VARIABLE = "MEADOW_DEVICE"
_OWN_KEYS = ("site-index", "site-count", "partition-id", "num-partitions")
_RUN_KEYS = (
    "partition",
    "partition-alpha",
    "partition-classes-per-client",
    "partition-min-samples",
    "partition-noise-variance",
    "partition-seed",
)
"""What a site depends on, of a run's configuration."""


def client_app(
    task: Task,
    *,
    device: str | None = None,
    copies: bool = True,
    training: LocalTraining | None = None,
    strategy: Algorithm | None = None,
) -> ClientApp:
    """Return a Flower ClientApp for `task`; it also runs under Flower alone.

    It answers "train" with the params after training, "evaluate" with metrics, and "query" with
    the numbers of samples. The Context names the site: `node_config["site-index"]` and
    `["site-count"]`, or Flower's "partition-id" and "num-partitions".

    Without `copies` the params in a reply may be the trained module's own memory, good until the
    next message: for a process that sends them at once.

    `device` is "auto", "cpu" or an accelerator as torch names it, "cuda:0"; by default
    MEADOW_DEVICE, or "auto".
    `strategy` is an algorithm of one's own, whose client's half the app has, where no meadow.toml
    names it: as `server_app`'s, under Flower alone.
    `training` replaces it with the owner's whole [device], in the agents' training process.
    """
    if strategy is not None:
        task = replace(task, algorithm=lambda name, arguments: strategy)
    wanted = device or os.environ.get(DEVICE_VARIABLE, "auto")
    return TaskApp(_Sites(task, wanted, copies, training), in_parts=copies)


class TaskApp(ClientApp):
    """A task's ClientApp, which an executor may also ask for one part of a training after another."""

    def __init__(self, sites: _Sites, *, in_parts: bool = True) -> None:
        super().__init__()
        self._sites = sites
        self._in_parts = in_parts

        @self.train()
        def train(message: Message, context: Context) -> Message:
            site = sites.of(context)
            return site.train(message, client=stream_of(context), state=context.state)

        @self.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            site = sites.of(context)
            return site.evaluate(message, client=stream_of(context), state=context.state)

        @self.query()
        def query(message: Message, context: Context) -> Message:
            return sites.of(context).count(message)

    def lifespan(self) -> Any:
        """Register what a call of the app runs in, as Flower's ClientApp does."""
        self._in_parts = False
        return super().lifespan()

    def begin(self, message: Message, context: Context) -> SiteTraining | None:
        """Read an instruction to train; None if only a call answers the message: it asks for something
        else, the app was extended, or a reply lies in the module's memory.

        Nothing of the context's state is read: `SiteTraining.train` is given it.
        """
        if message.metadata.message_type != MessageType.TRAIN or not self._in_parts:
            return None
        return self._sites.of(context).begin(message, client=stream_of(context))


class _Sites:
    """The sites that this process has seen, the last ones of them with their data loaded.

    torch is imported at the first message, so that an app can be looked at without it.
    """

    def __init__(
        self, task: Task, device: str, copies: bool, training: LocalTraining | None
    ) -> None:
        self._task = task
        self._training = training
        self._copies = copies
        self._wanted = device
        self._make: Any = None
        self._kept: OrderedDict[tuple[Any, ...], LocalSite] = OrderedDict()

    def of(self, context: Context) -> LocalSite:
        run = context.run_config
        key = (*context.node_config.items(), *map(run.get, _RUN_KEYS))
        if key not in self._kept:
            self._kept[key] = self._made(site_of(context))
            if len(self._kept) > SITES_KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _made(self, site: Site) -> LocalSite:
        if self._make is None:
            from ..device_use import choose_device
            from ..warm_module import WarmModule
            from .site import LocalSite
            from .training import LocalTraining

            training = self._training
            if training is None:
                training = LocalTraining(self._task, choose_device(self._wanted))
            module = WarmModule(self._task, training.module_device, training.use.prepare)
            self._make = lambda site: LocalSite(
                self._task, site, training=training, module=module, copies=self._copies
            )
        made: LocalSite = self._make(site)
        return made


def stream_of(context: Context) -> int:
    """Return the number that a client's random numbers follow from: its node id, or, in a run with
    clients behind relays, one that does not depend on where in the tree it is."""
    stream = context.node_config.get("site-stream", context.node_id)
    return stream if isinstance(stream, int) else context.node_id


def site_of(context: Context) -> Site:
    """Return the site that a Context belongs to.

    Raises:
        ProtocolError: the Context names no site.
    """
    return site_in(context.node_config, context.run_config)


def site_in(node: Mapping[str, Any], run: Mapping[str, Any]) -> Site:
    """Return the site that a node's and a run's configuration are of; raises as `site_of`."""
    index = node.get("site-index", node.get("partition-id"))
    count = node.get("site-count", node.get("num-partitions"))
    if type(index) is not int or type(count) is not int or not 0 <= index < count:
        raise ProtocolError(
            f"site-index {index!r} of site-count {count!r} is no site; set data.index and "
            "data.count in client.toml, or with Flower alone "
            "--node-config 'partition-id=0 num-partitions=2'"
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
    return _partition_of(
        run["partition"],
        float(run.get("partition-alpha", 0.5)),
        _whole(run.get("partition-classes-per-client", 2)),
        _whole(run.get("partition-min-samples", 1)),
        float(run.get("partition-noise-variance", 0.1)),
    )


@lru_cache(maxsize=16)  # a simulation asks for every client's
def _partition_of(
    kind: Any, alpha: float, classes_per_client: int, min_samples: int, noise_variance: float
) -> Partition:
    return Partition(
        kind=kind,
        alpha=alpha,
        classes_per_client=classes_per_client,
        min_samples=min_samples,
        noise_variance=noise_variance,
    )


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ProtocolError(f"a whole number is needed, got {value!r}")
    return value
