"""The server's side of one session of a secure round: one group of clients, one sum."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Error, Message, Metadata, MetricRecord, RecordDict
from numpy.typing import NDArray

from ....errors import NOTHING_TO_EVALUATE, ProtocolError, SecureAggregationError
from ....flower.messages import params_to_arrays, tensors_of
from ....randomness.seeds import derive, spread
from ....strategies.algorithms.combined import CLIENTS_KEY, EXAMPLES_KEY
from ..protocol import Plan, SecureSum, ServerSession
from ..terms.announcement import Announcement, bind, name_of
from ..terms.terms import MASKED, RECORD
from ..terms.vector import VectorLayout

__all__ = ["SecureGroup", "draw_groups", "session_id"]

OVERHEAD_BYTES_MAX = 4096
"""The bytes that a masked vector's message may have in addition to the vector."""


class SecureGroup:
    """The clients of one sum.

    Attributes:
        failures: node id -> why the client is not in the sum, or did not help to unmask it.
        suspects: clients that sent an invalid message.
    """

    def __init__(
        self,
        announcement: Announcement,
        layout: VectorLayout,
        *,
        head: Metadata,
        content: RecordDict,
    ) -> None:
        """Raises ConfigError if the terms are not safe for so many clients."""
        self.nodes = sorted(announcement.keys)
        self.failures: dict[int, str] = {}
        self.suspects: tuple[str, ...] = ()
        self._announcement, self._layout = announcement, layout
        self._category = head.message_type
        self._plan = announcement.plan(layout.length)
        self._session = ServerSession(
            plan=self._plan,
            roster=announcement.roster,
            binding=bind(
                announcement,
                run_id=head.run_id,
                category=self._category,
                group=head.group_id,
                content=content,
            ),
        )
        self.instruction = RecordDict({**content, RECORD: announcement.record()})

    def collect(self, node: int, content: RecordDict) -> None:
        """Take a client's answer; a refused answer excludes the client."""
        try:
            self._session.collect(name_of(node), _message_in(content, self._plan))
        except (SecureAggregationError, ProtocolError) as error:
            self.failures[node] = str(error)

    def next_messages(self) -> dict[int, RecordDict]:
        """End a step, and return the next message for each client.

        Raises:
            SecureAggregationError: too few clients are left.
        """
        messages, session = self._session.close_round(), self._announcement.session
        return {
            int(name): RecordDict(
                {RECORD: ConfigRecord({"session": session, "message": messages[name]})}
            )
            for name in sorted(messages, key=int)
        }

    def replies(self, instructions: Mapping[int, Message]) -> list[Message]:
        """Return the reply that stands for all clients in the sum.

        Raises:
            SecureAggregationError: there is no sum, or its weight is impossible.
        """
        result = self._session.sum()
        self.suspects = result.suspects
        nodes = sorted(int(name) for name in result.clients)
        if result.weight == 0 and self._category == "evaluate":
            nothing = Error(NOTHING_TO_EVALUATE, "no client has anything to evaluate")
            return [Message(nothing, reply_to=instructions[node]) for node in nodes]
        if not 0 < result.weight <= len(nodes) * self._plan.encoding.weight_max:
            raise SecureAggregationError(
                f"the clients' weights add up to {result.weight}: one did not follow the protocol"
            )
        return [Message(self._content(result, nodes), reply_to=instructions[nodes[0]])]

    def _content(self, result: SecureSum, nodes: list[int]) -> RecordDict:
        params, means = self._layout.mean(result.vector, result.weight)
        metrics: dict[str, Any] = {EXAMPLES_KEY: result.weight}
        metrics |= {name: np.nan if mean is None else mean for name, mean in means.items()}
        content = RecordDict({"metrics": MetricRecord({**metrics, CLIENTS_KEY: nodes})})
        if self._category == "train":
            content["arrays"] = params_to_arrays(params)
        return content


def draw_groups(
    nodes: list[int], *, size: int | None, seed: int, about: tuple[str, int]
) -> list[list[int]]:
    """Divide clients at random into as many groups of at least `size` as possible.

    Guarantees: the groups depend only on the set of clients, the seed and the round's run, type
        and message group. Their sizes differ by at most one.
    Edge cases: one group if `size` is None, or there are fewer than 2 `size` clients.
    """
    count = max(1, len(nodes) // size) if size else 1
    if count == 1:
        return [sorted(nodes)]
    ids = np.array(sorted(nodes), np.uint64)
    ranks: NDArray[Any] = spread(derive(seed, "secure groups", *about), ids)
    shuffled = ids[np.argsort(ranks, kind="stable")].tolist()
    return [sorted(shuffled[place::count]) for place in range(count)]


def session_id(head: Metadata, number: int, nodes: list[int]) -> bytes:
    """Return the id of the session of these clients, in this round of this run."""
    about = (head.run_id, head.message_type, head.group_id, number, nodes)
    return sha256(b"meadow secure session 1\0" + repr(about).encode()).digest()


def _message_in(content: RecordDict, plan: Plan) -> bytes:
    """Return the message in a client's answer; a masked vector is an array of bytes."""
    if MASKED in content.array_records:
        tensors = tensors_of(content.array_records[MASKED])
        tensor = tensors.get(MASKED)
        size_max = plan.encoding.wire_bytes + OVERHEAD_BYTES_MAX
        if tensor is None or tensor.dtype != np.uint8 or not _fits(tensor.shape, size_max):
            raise SecureAggregationError("a masked vector is not an array of the planned size")
        return tensor.numpy().tobytes()
    message = content.config_records.get(RECORD, ConfigRecord()).get("message")
    if type(message) is not bytes:
        raise SecureAggregationError("an answer has no message")
    return message


def _fits(shape: tuple[int, ...], size_max: int) -> bool:
    return len(shape) == 1 and shape[0] <= size_max
