"""One secure round over a Flower grid: instructions in, one reply that stands for everybody out.

The server has no secrets, and what it sends follows from what it heard: a server that was
restarted, and whose grid repeats the answers that were recorded, goes on with the same session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from ..errors import NOTHING_TO_EVALUATE, ConfigError, ProtocolError, SecureAggregationError
from ..flower import arrays_to_params, params_to_arrays, tensors_of
from ..strategies.algorithm import Params
from ..strategies.combined import CLIENTS_KEY, EXAMPLES_KEY
from .secagg import Plan, SecureSum, ServerSession
from .secagg.keys import KEY_BYTES
from .secagg.topology import CLIENTS_MIN, COMPLETE_MAX
from .secure_kinds import ANSWERS, IDENTITY, SUFFIX
from .secure_terms import (
    MASKED,
    RECORD,
    SECURE_SUM_FAILED,
    Announcement,
    SecureTerms,
    bind,
    name_of,
)
from .secure_vector import VectorLayout

__all__ = ["SecureExchange"]

VERSION = 1
OVERHEAD_BYTES_MAX = 4096
"""What a masked vector's message may have beside the vector."""


class SecureExchange:
    """The server's side of one secure sum, of a train or an evaluate instruction.

    Attributes:
        failures: why a client is not in the sum, or did not help to unmask it, by node id.
        suspects: clients in whose messages something was wrong.
    """

    def __init__(
        self,
        grid: Grid,
        instructions: Sequence[Message],
        *,
        terms: SecureTerms,
        timeout: float | None,
    ) -> None:
        self._grid, self._terms, self._timeout = grid, terms, timeout
        self._instructions = {message.metadata.dst_node_id: message for message in instructions}
        head = instructions[0]
        self._head, self._content = head.metadata, head.content
        self._category = head.metadata.message_type
        self._params = _params_of(self._content) if self._category == "train" else {}
        self._layout = VectorLayout(self._params, terms)
        self._weight_max = 0
        self.failures: dict[int, str] = {}
        self.suspects: tuple[str, ...] = ()

    def run(self) -> list[Message]:
        """Return the combined reply and an error for everybody else; only errors without a sum."""
        try:
            result = self._sum()
            self.suspects = result.suspects
            included = sorted(int(name) for name in result.clients)
            combined = self._combined(result, included)
        except (ConfigError, SecureAggregationError) as error:
            text = f"there is no secure sum: {error}"
            return [
                self._refusal(node, self.failures.get(node, text)) for node in self._instructions
            ]
        others = self._instructions.keys() - set(included)
        return combined + [
            self._refusal(node, self.failures.get(node, "no answer")) for node in sorted(others)
        ]

    # ------------------------------------------------------------------ the session

    def _sum(self) -> SecureSum:
        announcement = self._announcement()
        plan = self._terms.plan(clients=len(announcement.keys), length=self._layout.length)
        self._weight_max = plan.encoding.weight_max
        binding = bind(
            announcement, run_id=self._head.run_id, category=self._category, content=self._content
        )
        session = ServerSession(plan=plan, roster=announcement.roster, binding=binding)
        instruction = RecordDict({**self._content, RECORD: announcement.record()})
        nodes = sorted(announcement.keys)
        begun = self._ask(self._category + SUFFIX, dict.fromkeys(nodes, instruction))
        self._collect(session, plan, begun)
        for kind in ANSWERS:
            heard = session.close_round()
            contents = {
                int(name): _content_of(announcement.session, heard[name])
                for name in sorted(heard, key=int)
            }
            self._collect(session, plan, self._ask(kind, contents))
        return session.sum()

    def _announcement(self) -> Announcement:
        """Ask who everybody is, and return what the session will be."""
        if len(self._instructions) > COMPLETE_MAX:
            raise ConfigError(
                f"a secure sum is of at most {COMPLETE_MAX} clients, got {len(self._instructions)}; "
                "lower run.cohort"
            )
        question = RecordDict({RECORD: ConfigRecord({"version": VERSION})})
        asked = dict.fromkeys(sorted(self._instructions), question)
        keys: dict[int, bytes] = {}
        for node, content in self._ask(IDENTITY, asked):
            key = content.config_records.get(RECORD, ConfigRecord()).get("key")
            if type(key) is not bytes or len(key) != KEY_BYTES:
                self.failures[node] = "its public key is malformed"
            elif key in keys.values():
                self.failures[node] = "it has the public key of another client"
            else:
                keys[node] = key
        if len(keys) < CLIENTS_MIN:
            raise SecureAggregationError(
                f"only {len(keys)} clients can take part, and {CLIENTS_MIN} are needed"
            )
        number = self._round()
        head = (self._head.run_id, self._category, self._head.group_id, number, sorted(keys))
        session = sha256(b"meadow secure session 1\0" + repr(head).encode()).digest()
        return Announcement(session=session, round=number, keys=keys, terms=self._terms)

    def _round(self) -> int:
        for record in self._content.config_records.values():
            if isinstance(number := record.get("server-round"), int):
                return number
        group = self._head.group_id
        if not group.isdecimal():
            raise ConfigError(
                f'a secure round has a number, "server-round" or its group; {group!r} is none'
            )
        return int(group)

    def _collect(
        self, session: ServerSession, plan: Plan, answers: Iterator[tuple[int, RecordDict]]
    ) -> None:
        """Give a round's answers to the session; a client whose answer is refused is out."""
        for node, content in answers:
            try:
                session.collect(name_of(node), _message_in(content, plan))
            except (SecureAggregationError, ProtocolError) as error:
                self.failures[node] = str(error)

    def _ask(
        self, kind: str, contents: Mapping[int, RecordDict]
    ) -> Iterator[tuple[int, RecordDict]]:
        """Send clients a message each, and yield who answers what."""
        nodes, group = list(contents), self._head.group_id
        messages = [Message(contents[node], node, kind, group_id=group) for node in nodes]
        waiting = set(nodes)
        for reply in self._grid.send_and_receive(messages, timeout=self._timeout):
            node = reply.metadata.src_node_id
            if node not in waiting:
                continue
            waiting.discard(node)
            if reply.has_error():
                self.failures[node] = reply.error.reason or "it gave no reason"
            else:
                yield node, reply.content
        for node in waiting:
            self.failures.setdefault(node, "no answer")

    # ------------------------------------------------------------------ replies

    def _combined(self, result: SecureSum, nodes: list[int]) -> list[Message]:
        """Return the reply that stands for everybody in the sum."""
        if result.weight == 0 and self._category == "evaluate":
            nothing = Error(NOTHING_TO_EVALUATE, "no client has anything to evaluate")
            return [Message(nothing, reply_to=self._instructions[node]) for node in nodes]
        if not 0 < result.weight <= len(nodes) * self._weight_max:
            raise SecureAggregationError(
                f"the clients' weights add up to {result.weight}: one did not follow the protocol"
            )
        params, means = self._layout.mean(result.vector, result.weight)
        metrics: dict[str, Any] = {EXAMPLES_KEY: result.weight}
        metrics |= {name: np.nan if mean is None else mean for name, mean in means.items()}
        content = RecordDict({"metrics": MetricRecord({**metrics, CLIENTS_KEY: nodes})})
        if self._category == "train":
            content["arrays"] = params_to_arrays(params)
        return [Message(content, reply_to=self._instructions[nodes[0]])]

    def _refusal(self, node: int, reason: str) -> Message:
        error = Error(SECURE_SUM_FAILED, reason)
        return Message(error, reply_to=self._instructions[node])


def _params_of(content: RecordDict) -> Params:
    records = content.array_records
    if len(records) != 1:
        raise ConfigError(f"an instruction must carry one ArrayRecord, got {len(records)}")
    return arrays_to_params(next(iter(records.values())))


def _content_of(session: bytes, message: bytes) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({"session": session, "message": message})})


def _message_in(content: RecordDict, plan: Plan) -> bytes:
    """Return what a client's answer says; a masked vector comes as an array of bytes."""
    if MASKED in content.array_records:
        tensors = tensors_of(content.array_records[MASKED])
        tensor = tensors.get(MASKED)
        size_max = plan.encoding.wire_bytes + OVERHEAD_BYTES_MAX
        if tensor is None or tensor.dtype != np.uint8 or not _fits(tensor.shape, size_max):
            raise SecureAggregationError("a masked vector is not an array of so many bytes")
        return tensor.numpy().tobytes()
    message = content.config_records.get(RECORD, ConfigRecord()).get("message")
    if type(message) is not bytes:
        raise SecureAggregationError("an answer has no message")
    return message


def _fits(shape: tuple[int, ...], size_max: int) -> bool:
    return len(shape) == 1 and shape[0] <= size_max
