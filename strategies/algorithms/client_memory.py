"""What the server remembers of single clients: examples, losses, and when they were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .algorithm import Params, State
from .combined import ClientTable

__all__ = ["ClientMemory", "Known", "with_memory", "without_memory"]

LOSS = "loss"
SLOT = "clients"
"""The slot of a checkpoint that it is in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of some clients.

    Shapes: all (clients,).

    Attributes:
        examples: NaN where it is not known.
        loss: the mean loss of the last training, NaN where it is not known.
        round: of the last training, 0 where there was none.
        drawn: the last round that the client was drawn for, whether it answered or not.
        times: how often it was drawn.
    """

    examples: NDArray[np.float64]
    loss: NDArray[np.float64]
    round: NDArray[np.int64]
    drawn: NDArray[np.int64]
    times: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMemory:
    """The clients that were drawn, ascending, and what is known of each.

    It is part of a checkpoint: a resumed run draws the cohorts of one that was not interrupted.
    """

    clients: NDArray[np.int64]
    known: Known

    @classmethod
    def empty(cls) -> ClientMemory:
        """Return the memory before the first round."""
        return cls(clients=np.zeros(0, np.int64), known=_unknown(0))

    def of(self, clients: NDArray[np.int64]) -> Known:
        """Return what is known of these clients."""
        if not len(self.clients):
            return _unknown(len(clients))
        places = np.minimum(np.searchsorted(self.clients, clients), len(self.clients) - 1)
        met = self.clients[places] == clients
        return Known(
            examples=np.where(met, self.known.examples[places], np.nan),
            loss=np.where(met, self.known.loss[places], np.nan),
            round=np.where(met, self.known.round[places], 0),
            drawn=np.where(met, self.known.drawn[places], 0),
            times=np.where(met, self.known.times[places], 0),
        )

    def after(self, table: ClientTable, number: int, cohort: Sequence[int] = ()) -> ClientMemory:
        """Return the memory after a round for which these were drawn, and of whom some trained."""
        table = table.in_order()
        trained = np.array(table.clients, np.int64)
        losses = table.metrics.get(LOSS, [None] * len(trained))
        asked = np.array(sorted(cohort), np.int64)
        clients = np.union1d(self.clients, np.union1d(trained, asked))
        known, places = self.of(clients), np.searchsorted(clients, trained)
        known.examples[places] = _numbers(table.examples)
        known.loss[places] = _numbers(losses)
        known.round[places] = number
        places = np.searchsorted(clients, asked)
        known.drawn[places] = number
        known.times[places] += 1
        return ClientMemory(clients=clients, known=known)

    def arrays(self) -> Params:
        """Return the memory as arrays, which `read` takes."""
        known = self.known
        return {
            "clients": self.clients,
            "examples": known.examples,
            "loss": known.loss,
            "round": known.round,
            "drawn": known.drawn,
            "times": known.times,
        }

    @classmethod
    def read(cls, arrays: Params) -> ClientMemory:
        """Return the memory that `arrays` gave."""
        known = Known(
            examples=arrays["examples"],
            loss=arrays["loss"],
            round=arrays["round"],
            drawn=arrays["drawn"],
            times=arrays["times"],
        )
        return cls(clients=arrays["clients"], known=known)


def with_memory(state: State, memory: ClientMemory) -> State:
    """Return a state for a checkpoint that holds the memory too, if there is any."""
    if not len(memory.clients):
        return state
    return replace(state, slots={**state.slots, SLOT: memory.arrays()})


def without_memory(state: State) -> tuple[State, ClientMemory]:
    """Return a checkpoint's state as the algorithm knows it, and the memory beside it."""
    slots = dict(state.slots)
    arrays = slots.pop(SLOT, None)
    memory = ClientMemory.empty() if arrays is None else ClientMemory.read(arrays)
    return replace(state, slots=slots), memory


def _unknown(count: int) -> Known:
    return Known(
        examples=np.full(count, np.nan),
        loss=np.full(count, np.nan),
        round=np.zeros(count, np.int64),
        drawn=np.zeros(count, np.int64),
        times=np.zeros(count, np.int64),
    )


def _numbers(values: Any) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], np.float64)
