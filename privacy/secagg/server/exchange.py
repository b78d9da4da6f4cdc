"""One secure round over a Flower grid: it takes instructions and returns one reply per sum.

All groups of a round take each step together, in one exchange with their clients.

The server has no secrets, and its messages follow from the clients' answers. So a restarted
server whose grid repeats the recorded answers continues the same session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from ....errors import ConfigError, SecureAggregationError
from ....flower.messages import arrays_to_params
from ....strategies.algorithms.algorithm import Params
from ....strategies.algorithms.combined import clients_of
from ..protocol.steps import ProtocolStep
from ..protocol.topology import CLIENTS_MIN
from ..terms.announcement import Announcement
from ..terms.member import Member
from ..terms.terms import (
    ANSWERS,
    CLIENTS_MAX,
    IDENTITY,
    RECORD,
    SECURE_SUM_FAILED,
    SUFFIX,
    SecureTerms,
)
from ..terms.vector import VectorLayout
from .group import SecureGroup, draw_groups, session_id

__all__ = ["SecureExchange"]

VERSION = 4


class SecureExchange:
    """The server's side of one secure round, of a train or an evaluate instruction.

    Attributes:
        failures: node id -> why the client is in no sum, or did not help to unmask it.
        suspects: clients that sent an invalid message.
        introduced: the introductions for the next session that clients have already sent.
    """

    def __init__(
        self,
        grid: Grid,
        instructions: Sequence[Message],
        *,
        terms: SecureTerms,
        timeout: float | None,
        seed: int,
        introduced: Mapping[int, Member],
    ) -> None:
        """`seed` determines the groups; clients in `introduced` need not introduce themselves."""
        self._grid, self._terms, self._timeout, self._seed = grid, terms, timeout, seed
        self._instructions = {message.metadata.dst_node_id: message for message in instructions}
        head = instructions[0]
        self._head, self._content = head.metadata, head.content
        self._category = head.metadata.message_type
        params = _params_of(self._content) if self._category == "train" else {}
        self._layout = VectorLayout(params, terms)
        self._known = introduced
        self.failures: dict[int, str] = {}
        self.suspects: list[str] = []
        self.introduced: dict[int, Member] = {}

    def run(self) -> list[Message]:
        """Return a combined reply for each sum, and an error for each client that is in none."""
        replies: list[Message] = []
        try:
            groups = self._groups()
            for group in self._through_all_steps(groups):
                replies += self._try(group, lambda group: group.replies(self._instructions)) or []
                self.suspects += group.suspects
        except (ConfigError, SecureAggregationError) as error:
            self._give_up(self._instructions, error)
        included = {client for reply in replies for client in _stands_for(reply)}
        others = sorted(self._instructions.keys() - included)
        return replies + [
            self._refusal(node, self.failures.get(node, "no answer")) for node in others
        ]

    # ------------------------------------------------------------------ the sessions

    def _groups(self) -> list[SecureGroup]:
        """Get the clients' introductions, and return the sessions to run."""
        members, number = self._members(), self._round()
        groups = draw_groups(
            list(members),
            size=self._terms.group_size,
            seed=self._seed,
            about=(self._category, number),
        )
        return [
            SecureGroup(
                Announcement(
                    session=session_id(self._head, number, nodes),
                    round=number,
                    keys={node: members[node].key for node in nodes},
                    advertised={node: members[node].advertised for node in nodes},
                    certificates={
                        node: held for node in nodes if (held := members[node].certificate)
                    },
                    setup=members[nodes[0]].setup,
                    terms=self._terms,
                ),
                self._layout,
                head=self._head,
                content=self._content,
            )
            for nodes in groups
        ]

    def _through_all_steps(self, groups: list[SecureGroup]) -> list[SecureGroup]:
        """Take the groups through all steps, and return those that complete them."""
        begun = {node: group.instruction for group in groups for node in group.nodes}
        self._collect(groups, self._ask(self._category + SUFFIX, begun))
        for kind, step in ANSWERS.items():
            contents: dict[int, RecordDict] = {}
            left = []
            for group in groups:
                if (messages := self._try(group, SecureGroup.next_messages)) is not None:
                    contents |= messages
                    left.append(group)
            if not left:
                return []
            groups = left
            answers = self._ask(kind, dict(sorted(contents.items())))
            self._collect(groups, answers, last=step is ProtocolStep.UNMASK)
        return groups

    def _try(self, group: SecureGroup, step: Callable[[SecureGroup], Any]) -> Any:
        """Let a group take a step; None if an error ends the session for all its clients."""
        try:
            return step(group)
        except SecureAggregationError as error:
            self._give_up(group.nodes, error)
            return None
        finally:
            self.failures |= group.failures

    def _collect(
        self,
        groups: list[SecureGroup],
        answers: Iterator[tuple[int, RecordDict]],
        *,
        last: bool = False,
    ) -> None:
        group_of = {node: group for group in groups for node in group.nodes}
        for node, content in answers:
            group_of[node].collect(node, content)
            if last and (member := Member.read(content)) is not None:
                self.introduced[node] = member

    def _members(self) -> dict[int, Member]:
        """Return the clients that can take part, after asking for missing introductions."""
        if len(self._instructions) > CLIENTS_MAX:
            raise ConfigError(
                f"secure sums are of at most {CLIENTS_MAX} clients, got "
                f"{len(self._instructions)}; lower run.cohort"
            )
        found = {node: self._known[node] for node in self._instructions if node in self._known}
        unknown = sorted(self._instructions.keys() - found.keys())
        question = RecordDict({RECORD: ConfigRecord({"version": VERSION})})
        for node, content in self._ask(IDENTITY, dict.fromkeys(unknown, question)):
            if (member := Member.read(content)) is None:
                self.failures[node] = (
                    f"its introduction is malformed, or of another version than {VERSION}"
                )
            else:
                found[node] = member
        members: dict[int, Member] = {}
        used: set[bytes] = set()
        usual = _most_common(member.setup for member in found.values())
        for node in sorted(found):
            if found[node].setup != usual:
                self.failures[node] = "it has another app or run config than most clients"
                continue
            try:
                used |= found[node].public_keys(node, used=used)
                members[node] = found[node]
            except SecureAggregationError as error:
                self.failures[node] = str(error)
        if len(members) < CLIENTS_MIN:
            raise SecureAggregationError(
                f"only {len(members)} clients can take part, and {CLIENTS_MIN} are needed"
            )
        return members

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

    def _ask(
        self, kind: str, contents: Mapping[int, RecordDict]
    ) -> Iterator[tuple[int, RecordDict]]:
        """Send each client a message, and yield the node ids and contents of the replies."""
        if not contents:
            return
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

    def _give_up(self, nodes: Sequence[int] | Mapping[int, Message], error: Exception) -> None:
        for node in nodes:
            self.failures.setdefault(node, f"there is no secure sum: {error}")

    def _refusal(self, node: int, reason: str) -> Message:
        return Message(Error(SECURE_SUM_FAILED, reason), reply_to=self._instructions[node])


def _params_of(content: RecordDict) -> Params:
    records = content.array_records
    if len(records) != 1:
        raise ConfigError(f"an instruction must carry one ArrayRecord, got {len(records)}")
    return arrays_to_params(next(iter(records.values())))


def _most_common(setups: Iterable[bytes]) -> bytes | None:
    """Return the most common setup hash; of equally common ones, the smallest."""
    counts = Counter(setups)
    return min(counts, key=lambda setup: (-counts[setup], setup), default=None)


def _stands_for(reply: Message) -> Sequence[int]:
    return [reply.metadata.src_node_id] if reply.has_error() else clients_of(reply)
