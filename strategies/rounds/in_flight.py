"""The instructions that are under way in an asynchronous run, and the params that they are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
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
    """One client's instruction to train.

    Attributes:
        number: from 1, in the order in which they were given.
        version: the round whose params the client begins with.
        repeat: how often it has begun with them before.
        sent_at_s: on the grid's clock, 0 where it has none.
    """

    number: int
    client: int
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
        return {instruction.client for instruction in self._open.values()}

    def __len__(self) -> int:
        return len(self._open)

    # ------------------------------------------------------------------ giving and settling

    def new(self, client: int, *, version: int, now_s: float) -> OpenInstruction:
        """Return the next instruction; `add` it when it is given."""
        made = OpenInstruction(
            number=self.next_number,
            client=client,
            version=version,
            repeat=self._repeats[client],
            sent_at_s=now_s,
        )
        self._repeats[client] += 1
        self.next_number += 1
        return made

    def add(self, message_id: str, instruction: OpenInstruction) -> None:
        """Note that an instruction was given."""
        self._open[message_id] = instruction

    def settle(self, message_id: str) -> OpenInstruction | None:
        """Wait no longer for an instruction; None if nobody did."""
        instruction = self._open.pop(message_id, None)
        if instruction is not None:
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
        given = self.instructions
        columns: dict[str, NDArray[Any]] = {
            name: np.array([getattr(each, name) for each in given], np.int64) for name in COLUMNS
        }
        columns["sent_at_s"] = np.array([each.sent_at_s for each in given], np.float64)
        columns["arrived"] = np.array([id_ in arrived for id_ in self._open], bool)
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
        rows = zip(*(columns[name].tolist() for name in (*COLUMNS, "sent_at_s")), strict=True)
        given = [
            OpenInstruction(
                number=number, client=client, version=version, repeat=repeat, sent_at_s=at
            )
            for number, client, version, repeat, at in rows
        ]
        again = tuple(zip(given, columns["arrived"].tolist(), strict=True))
        return made, replace(state, slots=slots), again
