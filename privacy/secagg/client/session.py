"""A client's secure session between two messages, stored in its Flower Context.

A client app may run in another process for every message, so the Context stores what determines a
session: its seed, the instruction's binding, and the messages received. The process that answered
the previous message still has the session in memory; another process replays the messages.

Guarantees: each step is answered once, in order. The Context is made durable together with an
    answer, before the answer is sent; so a client that was killed repeats an answer or drops out,
    and never gives two different answers to one step.
    A session that `Past` refuses is not begun.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from ....errors import SecureAggregationError
from ....flower.messages import params_to_arrays, tensors_of
from ..protocol import Binding, ClientSession
from ..protocol.binding import context_of
from ..protocol.steps import ProtocolStep
from ..terms.announcement import Announcement, name_of
from .identity import SecureIdentity
from .introduction import expand, keys_of
from .past import Past

__all__ = ["SavedSession"]

SESSION = "meadow-secure-session"
ANNOUNCEMENT = "meadow-secure-announcement"
VECTOR = "meadow-secure-vector"
LIVE_MAX = 128
"""The most sessions in memory; a simulation has many clients in one process."""

_live: OrderedDict[bytes, tuple[list[bytes], ClientSession]] = OrderedDict()
"""Sessions in memory by `SavedSession.bound`, each with the messages that it has received."""


@dataclass(slots=True, kw_only=True)
class SavedSession:
    """A session that is stored in a Context's state."""

    state: RecordDict
    identity: SecureIdentity
    announcement: Announcement
    binding: Binding
    category: str
    length: int
    seed: bytes
    bound: bytes
    """The seed of all randomness but the keys; unique to this session even if entropy repeats."""
    weight: int
    heard: list[bytes]

    @classmethod
    def begin(
        cls,
        state: RecordDict,
        *,
        identity: SecureIdentity,
        announcement: Announcement,
        binding: Binding,
        category: str,
        seed: bytes,
        vector: NDArray[Any],
        weight: int,
    ) -> bytes:
        """Begin a session, which replaces any earlier one, and return its first message.

        `seed` is that of the keys that this client has advertised.

        Raises:
            SecureAggregationError: `Past` does not allow it.
        """
        Past(state).begin(category, binding)
        plan, roster = announcement.plan(len(vector)), announcement.roster
        saved = cls(
            state=state,
            identity=identity,
            announcement=announcement,
            binding=binding,
            category=category,
            length=len(vector),
            seed=seed,
            bound=sha256(seed + context_of(plan, roster, binding)).digest(),
            weight=weight,
            heard=[],
        )
        session = saved._session()
        answer = session.share()
        state[ANNOUNCEMENT] = announcement.record()
        state[VECTOR] = params_to_arrays({"vector": vector})
        saved._save()
        saved._keep_in_memory(session)
        return answer

    @classmethod
    def resume(cls, state: RecordDict, identity: SecureIdentity, session: bytes) -> SavedSession:
        """Return the saved session with the id `session`.

        Raises:
            SecureAggregationError: there is no session, or it has another id.
        """
        records = state.config_records  # a new object at every access
        if SESSION not in records:
            raise SecureAggregationError("this client is in no session: it ended, or was lost")
        entries: Any = records[SESSION]
        announcement = Announcement.read(records[ANNOUNCEMENT])
        if announcement.session != session:
            raise SecureAggregationError("this client is in another session")
        binding = Binding(
            session=announcement.session,
            round=announcement.round,
            model=entries["model"],
            configuration=entries["configuration"],
            beacon=entries["beacon"],
        )
        return cls(
            state=state,
            identity=identity,
            announcement=announcement,
            binding=binding,
            category=entries["category"],
            length=entries["length"],
            seed=entries["seed"],
            bound=entries["bound"],
            weight=entries["weight"],
            heard=[entries[f"heard-{place}"] for place in range(entries["heard"])],
        )

    @staticmethod
    def end(state: RecordDict) -> None:
        """Delete the session, if there is one."""
        if SESSION in state:
            _live.pop(cast(bytes, state.config_records[SESSION]["bound"]), None)
        for name in (SESSION, ANNOUNCEMENT, VECTOR):
            if name in state:
                del state[name]

    def answer(self, step: ProtocolStep, message: bytes) -> bytes:
        """Return the answer of one step to the server's message.

        Raises:
            SecureAggregationError: the session is at another step, or a check fails.
        """
        if step != len(self.heard) + 1:
            at = ProtocolStep(len(self.heard) + 1).name.lower()
            raise SecureAggregationError(
                f"the step {step.name.lower()} is requested, but this session is at {at}"
            )
        session = self._restored()
        answer = self._take_step(session, step, message, self._vector)
        self.heard.append(message)
        if step is ProtocolStep.MASK:
            Past(self.state).mask(self.category, self.binding)
            del self.state[VECTOR]
        if step is ProtocolStep.UNMASK:
            self.end(self.state)
        else:
            self._save()
            self._keep_in_memory(session)
        return answer

    def _restored(self) -> ClientSession:
        """Return the session after the messages so far, by the owner's present minimum."""
        live = _live.pop(self.bound, None)
        if live is not None and live[0] == self.heard:
            self.identity.minimum.require(self.announcement.plan(self.length).topology)
            return live[1]
        session = self._session()
        session.share()
        for place, earlier in enumerate(self.heard):
            self._take_step(session, ProtocolStep(place + 1), earlier, self._placeholder)
        return session

    def _keep_in_memory(self, session: ClientSession) -> None:
        _live[self.bound] = (list(self.heard), session)
        while len(_live) > LIVE_MAX:
            _live.popitem(last=False)

    def _take_step(
        self,
        session: ClientSession,
        step: ProtocolStep,
        message: bytes,
        vector: Callable[[], tuple[NDArray[Any], int]],
    ) -> bytes:
        if step is ProtocolStep.MASK:
            return session.mask(message, *vector())
        answers = {
            ProtocolStep.CONFIRM: session.confirm,
            ProtocolStep.UNMASK: session.unmask,
        }
        return answers[step](message)

    def _vector(self) -> tuple[NDArray[Any], int]:
        arrays: ArrayRecord = self.state.array_records[VECTOR]
        return tensors_of(arrays)["vector"].numpy(), self.weight

    def _placeholder(self) -> tuple[NDArray[Any], int]:
        """Return zeros, in place of the vector, for the replay of a step that was answered."""
        return np.zeros(self.length, np.float32), 0

    def _session(self) -> ClientSession:
        return ClientSession(
            plan=self.announcement.plan(self.length),
            me=name_of(self.identity.node),
            signing_key=self.identity.key,
            keys=keys_of(self.seed),
            roster=self.announcement.roster,
            binding=self.binding,
            entropy=expand(self.bound),
            minimum=self.identity.minimum,
        )

    def _save(self) -> None:
        entries: dict[str, Any] = {
            "category": self.category,
            "model": self.binding.model,
            "configuration": self.binding.configuration,
            "beacon": self.binding.beacon,
            "length": self.length,
            "seed": self.seed,
            "bound": self.bound,
            "weight": self.weight,
            "heard": len(self.heard),
        }
        entries |= {f"heard-{place}": message for place, message in enumerate(self.heard)}
        self.state[SESSION] = ConfigRecord(entries)
