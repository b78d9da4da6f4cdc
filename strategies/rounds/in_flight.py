"""The instructions that are under way in an asynchronous run, and the params that they are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithms.algorithm import Params, State

__all__ = ["Again", "InFlight", "OpenInstruction", "group_of"]

SLOT, BASE = "open", "base-"
"""The slots of a checkpoint: the open instructions, and the params of a round that they are of."""
COLUMNS = ("number", "client", "version", "repeat")


def group_of(number: int) -> str:
    """Return the group that an instruction is alone in: grids know it by that name."""
    return f"i{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenInstruction:
    """An instruction to train: of one client, or of several behind the same relay.

    Attributes:
        number: from 1, in the order in which they were given.
        clients: those who have not answered.
        version: the round whose params the client begins with.
        repeat: how often each has begun with them before.
        sent_at_s: on the grid's clock, 0 where it has none.
    """

    number: int
    clients: tuple[int, ...]
    version: int
    repeat: int
    sent_at_s: float


Again = Sequence[tuple[OpenInstruction, bool]]
"""What is to be given again after a restart, and whether its answer had arrived."""


class InFlight:
    """Who works on what.

    It is part of a checkpoint, params of earlier rounds included, so that a resumed run gives the
    same instructions again, and takes for done what was done.

    Attributes:
        settled: the numbers of those that nobody waits for any more, since the last commit.
    """

    def __init__(self) -> None:
        self._open: dict[str, OpenInstruction] = {}
        self._bases: dict[int, Params] = {}
        self._repeats: Counter[int] = Counter()
        self.next_number = 1
        self.settled: list[int] = []

    @property
    def ids(self) -> list[str]:
        """The ids of the open instructions' messages, in the order in which they were given."""
        return list(self._open)

    @property
    def instructions(self) -> list[OpenInstruction]:
        """The open instructions, in the order in which they were given."""
        return list(self._open.values())

    @property
    def busy(self) -> set[int]:
        """The clients that are at work."""
        return {client for instruction in self._open.values() for client in instruction.clients}

    def __len__(self) -> int:
        return sum(len(instruction.clients) for instruction in self._open.values())

    # ------------------------------------------------------------------ giving and settling

    def repeat_of(self, client: int) -> int:
        """Return how often a client has begun with the newest params."""
        return self._repeats[client]

    def new(self, clients: Iterable[int], *, version: int, now_s: float) -> OpenInstruction:
        """Return the next instruction, for clients of the same `repeat_of`; `add` it when it is given."""
        asked = tuple(sorted(clients))
        made = OpenInstruction(
            number=self.next_number,
            clients=asked,
            version=version,
            repeat=self._repeats[asked[0]],
            sent_at_s=now_s,
        )
        self._repeats.update(asked)
        self.next_number += 1
        return made

    def add(self, message_id: str, instruction: OpenInstruction) -> None:
        """Note that an instruction was given."""
        self._open[message_id] = instruction

    def settle(self, message_id: str, clients: Collection[int] = ()) -> OpenInstruction | None:
        """Wait no longer for an instruction, or for these of its clients; None if nobody did."""
        instruction = self._open.get(message_id)
        if instruction is None:
            return None
        left = tuple(c for c in instruction.clients if clients and c not in clients)
        if left and len(instruction.clients) > 1:
            self._open[message_id] = replace(instruction, clients=left)
        else:
            del self._open[message_id]
            self.settled.append(instruction.number)
        return instruction

    def settle_where(self, unwanted: Callable[[OpenInstruction], bool]) -> list[OpenInstruction]:
        """Wait no longer for some instructions, and return them."""
        ids = [id_ for id_, instruction in self._open.items() if unwanted(instruction)]
        return [given for id_ in ids if (given := self.settle(id_)) is not None]

    def base_of(self, instruction: OpenInstruction, state: State) -> Params:
        """Return the params that an instruction is about."""
        if instruction.version == state.round:
            return state.params
        return self._bases[instruction.version]

    # ------------------------------------------------------------------ rounds

    def end_round(self, before: State) -> None:
        """The next params are made; keep those before as long as somebody works on them."""
        self._bases[before.round] = before.params
        wanted = {instruction.version for instruction in self._open.values()}
        self._bases = {round_: self._bases[round_] for round_ in self._bases if round_ in wanted}
        self._repeats.clear()

    def kept(self, state: State, arrived: Collection[str]) -> State:
        """Return a state for a checkpoint that holds all of this too.

        `arrived` are the messages whose answers are there and not used yet.
        """
        rows = [
            ((each.number, client, each.version, each.repeat), each.sent_at_s, id_ in arrived)
            for id_, each in self._open.items()
            for client in each.clients
        ]
        columns: dict[str, NDArray[Any]] = {
            name: np.array([whole[place] for whole, _, _ in rows], np.int64)
            for place, name in enumerate(COLUMNS)
        }
        columns["sent_at_s"] = np.array([sent_at_s for _, sent_at_s, _ in rows], np.float64)
        columns["arrived"] = np.array([is_there for _, _, is_there in rows], bool)
        columns["settled"] = np.array(self.settled, np.int64)
        columns["next_number"] = np.array([self.next_number], np.int64)
        bases = {f"{BASE}{version}": params for version, params in self._bases.items()}
        return replace(state, slots={**state.slots, SLOT: columns, **bases})

    @classmethod
    def recall(cls, state: State) -> tuple[InFlight, State, Again]:
        """Take out of a checkpoint's state what `kept` put there; return the algorithm's part too."""
        made, slots = cls(), dict(state.slots)
        columns = slots.pop(SLOT, None)
        for name in [name for name in slots if name.startswith(BASE)]:
            made._bases[int(name.removeprefix(BASE))] = slots.pop(name)
        if columns is None:
            return made, replace(state, slots=slots), ()
        made.next_number = int(columns["next_number"][0])
        made.settled = columns["settled"].tolist()
        names = (*COLUMNS, "sent_at_s", "arrived")
        rows = list(zip(*(columns[name].tolist() for name in names), strict=True))
        again = [
            (
                OpenInstruction(
                    number=number,
                    clients=tuple(client for _, client, *_ in of_number),
                    version=version,
                    repeat=repeat,
                    sent_at_s=sent_at_s,
                ),
                is_there,
            )
            for of_number in (list(group) for _, group in groupby(rows, key=itemgetter(0)))
            for number, _, version, repeat, sent_at_s, is_there in of_number[:1]
        ]
        return made, replace(state, slots=slots), again
