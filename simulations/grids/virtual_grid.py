"""`VirtualGrid`: a `SimulationGrid` whose clients take the time that their devices would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from flwr.app import Error, Message, MessageType
from numpy.typing import NDArray

from ...apps.folder import App
from ...config.sections.model import Config
from ...errors import NOTHING_TO_EVALUATE
from ...flower.messages import content_bytes, set_message_id
from ...strategies.algorithms.combined import clients_of
from ...strategies.rounds.broadcast import Broadcast
from ..devices.available_cohort import draw_available
from ..devices.devices import Devices, DeviceWork
from ..devices.virtual_clock import Fate, VirtualClock
from ..executors.contract import APP_RAISED, Executor
from ..population.clients import SimulatedClients
from ..population.tags import Tagged, tagged_of
from .example_counts import ExampleCounts
from .simulation_grid import SimulationGrid

__all__ = ["VirtualGrid", "devices_of"]

REPLY_UNAVAILABLE = 4
"""Flower's code for a reply that will not come. Source: flwr 1.41, ErrorCode."""
EPOCHS_KEY = "epochs"


class VirtualGrid(SimulationGrid):
    """Executes only what counts, and lets the clock go on by what that would have taken.

    Guarantees: who counts, and what time it is after a step, depend on the seed, the messages and
        the time before it: not on the executor, nor on this machine.
    """

    def __init__(
        self,
        executor: Executor,
        clients: SimulatedClients,
        *,
        clock: VirtualClock,
        counts: ExampleCounts,
        tagged: Tagged | None = None,
    ) -> None:
        super().__init__(executor, clients, tagged=tagged)
        self._clock = clock
        self._counts = counts
        self._late: list[int] = []

    @classmethod
    def of(
        cls, config: Config, devices: Devices, executor: Executor, clients: SimulatedClients
    ) -> VirtualGrid:
        """Return the grid of a Meadow app: its quorum is the run's, its clients know queries."""
        return cls(
            executor,
            clients,
            clock=VirtualClock(devices, quorum=config.run.min_clients),
            counts=ExampleCounts(executor, clients.count, otherwise=devices.config.examples),
            tagged=tagged_of(config),
        )

    # ------------------------------------------------------------------ what a strategy asks

    @property
    def now_s(self) -> float:
        """Virtual seconds since the run began."""
        return self._clock.now_s

    def begin_at(self, now_s: float) -> None:
        """Go on at the time at which an interrupted run had arrived."""
        self._clock.now_s = now_s

    @property
    def late(self) -> Sequence[int]:
        """Who was too late for the last step, ascending."""
        return self._late

    def draw_cohort(
        self, *, cohort: float, at_least: int, seed: int, round_number: int
    ) -> list[int]:
        """Draw among the clients that are there, waiting in virtual time for `at_least` of them.

        Raises:
            QuorumError: so many are never there at once.
        """
        count = self._clients.count
        while True:
            drawn = draw_available(
                count,
                self._is_there,
                cohort=cohort,
                at_least=at_least,
                seed=seed,
                round_number=round_number,
            )
            if len(drawn) >= at_least:
                return drawn
            self._clock.wait_for(at_least, among=np.asarray(self.get_node_ids()))

    def _is_there(self, ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        there = self._clock.devices.available(ids, self._clock.now_s)
        return there if self._tagged is None else there & self._tagged.has(ids)

    # ------------------------------------------------------------------ Flower's interface

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages now; they are executed when their replies have arrived and are pulled."""
        batch = list(messages)
        ids = list(super().push_messages(batch))
        if batch:
            head = batch[0].metadata
            self._clock.send(
                ids,
                _clients_in(batch),
                self._work_of(batch),
                occasion=f"{head.group_id}/{head.message_type}",
                ttl_s=[message.metadata.ttl for message in batch],
            )
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return what has arrived, in order of arrival; if nothing has, what does next.

        No answer within a message's time to live is an error reply, as in Flower.
        """
        arrived = [(self._waiting.pop(id_), fate) for id_, fate in self._clock.receive(message_ids)]
        answered = [message for message, fate in arrived if fate is Fate.ANSWERED]
        replies = {
            reply.metadata.reply_to_message_id: reply for reply in self._execute_pushed(answered)
        }
        for message, fate in arrived:
            if fate is not Fate.ANSWERED:
                replies[message.metadata.message_id] = _failure(message, fate)
        return [replies[message.metadata.message_id] for message, _ in arrived]

    # ------------------------------------------------------------------ parts of it

    def _that_answer(self) -> Iterable[Message]:
        return (m for id_, m in self._waiting.items() if self._clock.answers(id_))

    def _drop(self, ids: Sequence[str]) -> None:
        super()._drop(ids)
        self._clock.forget(ids)

    def _answer(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        self._late = []
        if not len(messages):
            return
        self._count_sent(messages)
        clients, kind, group_id = _clients_in(messages), *_head(messages)
        step = self._clock.begin(
            clients,
            self._work_of(messages),
            # a round's chances are its own, whatever time it is; without a name, the time names it
            occasion=f"{group_id or repr(self._clock.now_s)}/{kind}",
            deadline_s=timeout,
        )
        valid = 0
        while len(places := step.take(valid)):
            for place in places[step.fails[places]].tolist():
                yield _failure(messages[place], Fate.FAILED)
            chosen = places[~step.fails[places]].tolist()
            for reply in self._execute_uncounted(_those(messages, chosen)):
                valid += len(clients_of(reply)) if _is_answer(reply) else 0
                yield reply
        self._late = sorted(clients[step.late].tolist())
        self._clock.end(step)

    def _work_of(self, messages: Sequence[Message]) -> DeviceWork:
        """Return the work and the bytes of messages of one kind; an update is as large as the params."""
        kind, _ = _head(messages)
        heads = messages[:1] if isinstance(messages, Broadcast) else messages
        down = np.array([content_bytes(message) for message in heads], np.float64)
        trains = kind == MessageType.TRAIN
        epochs = np.array([_epochs_in(message) if trains else 1 for message in heads], np.float64)
        counts = self._counts.of(kind, _clients_in(messages))
        return DeviceWork(
            bytes_down=down, bytes_up=down if trains else 0.0, examples=counts * epochs
        )


def devices_of(app: App) -> Devices | None:
    """Return the devices that an app's [simulation.devices] describes; None if it has none.

    Raises:
        ConfigError: a file that the section names cannot be used.
    """
    if app.config is None or app.config.simulation.devices is None:
        return None
    return Devices.of(
        app.config.simulation.devices,
        seed=app.config.run.seed,
        clients=app.config.simulation.clients,
        folder=app.folder,
    )


def _head(messages: Sequence[Message]) -> tuple[str, str]:
    """Return the kind of the messages, as "train" in "train.adapter", and their group."""
    head = messages if isinstance(messages, Broadcast) else messages[0].metadata
    return head.message_type.partition(".")[0], head.group_id


def _clients_in(messages: Sequence[Message]) -> NDArray[np.int64]:
    if isinstance(messages, Broadcast):
        return np.asarray(messages.clients, np.int64)
    return np.array([message.metadata.dst_node_id for message in messages], np.int64)


def _those(messages: Sequence[Message], places: list[int]) -> Sequence[Message]:
    if isinstance(messages, Broadcast):
        return messages.to([messages.clients[place] for place in places])
    return [messages[place] for place in places]


def _epochs_in(message: Message) -> int:
    for config in message.content.config_records.values():
        epochs = config.get(EPOCHS_KEY)
        if isinstance(epochs, int) and epochs >= 1:
            return epochs
    return 1


def _is_answer(reply: Message) -> bool:
    """Whether a reply counts towards the quorum."""
    return not reply.has_error() or reply.error.code == NOTHING_TO_EVALUATE


def _failure(message: Message, fate: Fate) -> Message:
    error = Error(APP_RAISED, "the simulated device failed")
    if fate is Fate.EXPIRED:
        error = Error(REPLY_UNAVAILABLE, f"no answer within {message.metadata.ttl:g} s")
    reply = Message(error, reply_to=message)
    set_message_id(reply, f"{message.metadata.message_id}-r")
    return reply
