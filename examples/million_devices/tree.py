"""What a tree of relays changes in a round: a calculation, for any number of devices and any model.

A relay passes the params down, and sends one sum up in the place of its devices' updates. The sum is
exact, so that a round's model is that of the same updates without a tree, to the last bit: rounds
and accuracies that were simulated hold for a tree too, at the deadline that it leaves to the devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from rich.table import Table

from meadow.relay.trainer import DEADLINE_SHARE

__all__ = ["EXAMPLES", "Federation", "Level", "table_of"]

SUM_PER_UPDATE = 2
"""A sum has float64 values, an update float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What each node of a level does in a round; level 0 is the server.

    Attributes:
        nodes: how many there are.
        bytes_below, bytes_above: received and sent by each of them, on either side.
        stored_bytes: of answers from below, at most, until they have been added up.
        waits_s: at most, for the answers from below.
    """

    nodes: int
    bytes_below: float
    bytes_above: float
    stored_bytes: float
    waits_s: float

    @property
    def bytes_moved(self) -> float:
        return self.bytes_below + self.bytes_above


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """A server, relays in as many levels as `relays` has numbers, and a round's cohort of devices.

    Attributes:
        relays: below the server, and below each relay of the level before.
        answered: the share of the cohort whose updates count.
        params_bytes: of the params, and so of an update.
    """

    cohort: int
    relays: tuple[int, ...] = ()
    answered: float = 0.95
    params_bytes: float = 10e6
    deadline_s: float = 60.0

    def levels(self) -> list[Level]:
        """Return the server's level and each level of relays."""
        nodes = list(accumulate((1, *self.relays), mul))
        levels = []
        for depth, (count, below) in enumerate(zip(nodes, [*nodes[1:], self.cohort], strict=True)):
            answer = SUM_PER_UPDATE if depth < len(self.relays) else self.answered
            each = self.params_bytes * below / count
            above = self.params_bytes * (1 + SUM_PER_UPDATE) if depth else 0
            levels.append(
                Level(
                    nodes=count,
                    bytes_below=each * (1 + answer),
                    bytes_above=above,
                    stored_bytes=each * answer,
                    waits_s=self.deadline_s * DEADLINE_SHARE**depth,
                )
            )
        return levels

    def transfers_s(self, bytes_per_s: float) -> float:
        """Return how long a round's transfers take at least, if every node has such a link for both
        directions together: one level after the other, as a relay passes on what it has whole."""
        return sum(level.bytes_below for level in self.levels()) / bytes_per_s


EXAMPLES = tuple(
    Federation(cohort=10_000, relays=relays) for relays in ((), (10,), (100,), (10, 10))
)
LINK_BYTES_PER_S = 1e9 / 8


def table_of(federations: Sequence[Federation]) -> Table:
    """Return a line a federation; a relay's figures are those of the level next to the devices."""
    table = Table(
        title="a tree, by calculation: 10,000 devices, params of 10 MB, a deadline of 60 s",
        title_justify="left",
    )
    for heading in (
        *("relays", "server GB", "server stores GB", "relay GB", "all links GB"),
        *("transfers s at 1 Gbit/s", "left to devices s"),
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in federations:
        server, *relays = levels = each.levels()
        links = sum(level.nodes * level.bytes_below for level in levels)
        table.add_row(
            " x ".join(map(str, each.relays)) or "none",
            f"{server.bytes_moved / 1e9:.1f}",
            f"{server.stored_bytes / 1e9:.1f}",
            f"{relays[-1].bytes_moved / 1e9:.1f}" if relays else "-",
            f"{links / 1e9:.1f}",
            f"{each.transfers_s(LINK_BYTES_PER_S):.0f}",
            f"{levels[-1].waits_s:.1f}",
        )
    return table
