"""A server that asks what it must not be told, over the grid that real clients are behind.

What every client answered to every lie is written to the result file; the file beside it with
".pause" is there while a test may do something to the clients.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from meadow.flower.messages import arrays_to_params, params_to_arrays
from meadow.privacy.secagg.server.grid import SecureAggregationGrid
from meadow.privacy.secagg.terms.announcement import Announcement
from meadow.privacy.secagg.terms.terms import ANSWERS, IDENTITY, SecureTerms

CLIENTS = 5
TRAIN, (VECTOR, CONFIRM, UNMASK) = "train.secure", ANSWERS
SET_AT = 21
"""A set of clients follows a message's header."""
Lie = Callable[[RecordDict], RecordDict]
app = ServerApp()


class Tap:
    """A grid that remembers what clients were asked, and lies to one of them."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.asked: dict[tuple[int, str], RecordDict] = {}
        self.change: Callable[[int, str, RecordDict], RecordDict] = lambda node, kind, said: said
        self.after: Callable[[str], None] = lambda kind: None

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send what is asked, changed, and tell when everybody has answered."""
        batch = []
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            content = self.asked[node, kind] = self.change(node, kind, message.content)
            batch.append(Message(content, node, kind, group_id=message.metadata.group_id))
        replies = list(self.grid.send_and_receive(batch, timeout=timeout))
        self.after(kind)
        return replies

    def ask(self, node: int, kind: str, content: RecordDict | None = None) -> str:
        """Ask one client something again, or something else; return why it refuses."""
        content = self.asked[node, kind] if content is None else content
        (reply,) = self.grid.send_and_receive([Message(content, node, kind, group_id="lies")])
        return str(reply.error.reason) if reply.has_error() else "ANSWERED"


def without(said: RecordDict, client: int) -> RecordDict:
    """Return a message whose set of clients lacks one."""
    record = said.config_records["secure"]
    text = bytearray(record["message"])  # type: ignore[arg-type]
    text[SET_AT] ^= 1 << client
    return RecordDict({"secure": ConfigRecord({**record, "message": bytes(text)})})


def announced(said: RecordDict, **fields: Any) -> RecordDict:
    """Return an instruction with another announcement."""
    told = replace(Announcement.read(said.config_records["secure"]), **fields)
    return RecordDict({**said, "secure": told.record()})


def grown(said: RecordDict) -> RecordDict:
    """Return an instruction with a client that the server has made up."""
    told = Announcement.read(said.config_records["secure"])
    advertised = {**told.advertised, 99: bytes(range(160))}
    return announced(said, keys={**told.keys, 99: b"k" * 32}, advertised=advertised)


def swapped(said: RecordDict) -> RecordDict:
    """Return an instruction in which two clients have each other's keys."""
    told = Announcement.read(said.config_records["secure"])
    first, last = min(told.keys), max(told.keys)
    keys = {**told.keys, first: told.keys[last], last: told.keys[first]}
    return announced(said, keys=keys)


def pause(file: Path) -> None:
    """Wait until the test has done what it does to the clients."""
    file.touch()
    while file.exists():
        time.sleep(0.02)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Rounds: an honest one, and then lies before, in and after sessions."""
    file = Path(str(context.run_config["result-file"]))
    while len(nodes := sorted(grid.get_node_ids())) < CLIENTS:
        time.sleep(0.02)
    tap = Tap(grid)
    heard: dict[str, Any] = {}
    secure = SecureAggregationGrid(tap, SecureTerms(value_bound=10.0, metrics=("loss",)))  # type: ignore[arg-type]

    def run(number: int, name: str) -> None:
        params = {"w": np.full(4, float(number), np.float32)}
        content = RecordDict(
            {
                "arrays": params_to_arrays(params),
                "config": ConfigRecord({"server-round": number}),
            }
        )
        batch = [Message(content, node, "train", group_id=str(number)) for node in nodes]
        replies = list(secure.send_and_receive(batch, timeout=60.0))
        sums = [reply for reply in replies if reply.has_content()]
        heard[f"refused in {name}"] = {
            reply.metadata.src_node_id: str(reply.error.reason)
            for reply in replies
            if reply.has_error()
        }
        heard[name] = [
            [
                list(reply.content["metrics"]["combined-clients"]),
                float(arrays_to_params(reply.content["arrays"])["w"].mean()) - number,
            ]
            for reply in sums
        ]

    run(1, "round 1")
    for kind in (TRAIN, VECTOR, CONFIRM, UNMASK):
        heard[f"replayed {kind}"] = tap.ask(nodes[0], kind)

    def in_the_middle(kind: str) -> None:
        if kind == CONFIRM:
            pause(file.with_suffix(".pause"))
            other = without(tap.asked[nodes[1], CONFIRM], 4)
            heard["other survivors"] = tap.ask(nodes[1], CONFIRM, other)
        elif kind == UNMASK:
            heard["unmasked twice"] = tap.ask(nodes[0], UNMASK)
            heard["unmasked for others"] = tap.ask(
                nodes[2], UNMASK, without(tap.asked[nodes[2], UNMASK], 4)
            )

    tap.after = in_the_middle
    run(2, "round 2")
    tap.after = lambda kind: None

    for number, name, lie in ((3, "a made-up client", grown), (4, "swapped keys", swapped)):

        def to_one(node: int, kind: str, said: RecordDict, lie: Lie = lie) -> RecordDict:
            return lie(said) if (node, kind) == (nodes[1], TRAIN) else said

        tap.change = to_one
        run(number, name)
    tap.change = lambda node, kind, said: said
    run(4, "the same round")
    heard["identity again"] = tap.ask(nodes[0], IDENTITY)
    file.write_text(json.dumps(heard))
