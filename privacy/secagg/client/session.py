"""A client's secure session between two messages, kept in its Flower Context.

A client app may run in another process for every message, so a session is kept as what it follows
from: its seed, the instruction's binding, and the messages that were heard. A process that
has answered the message before still has the session; another one goes through it again.

Guarantees: a step is answered once, in order. Whoever keeps the Context makes it durable before
    an answer leaves, with the answer; so a client that is killed repeats an answer or is out, and
    never gives another one to the same step.
    What `Past` refuses is not begun.
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
"""So many sessions stay in memory; a simulation has many clients in one process."""

_live: OrderedDict[bytes, tuple[list[bytes], ClientSession]] = OrderedDict()
"""Sessions by what they follow from, with what each has heard."""


@dataclass(slots=True, kw_only=True)
class SavedSession:
    """A session, and where in the Context it is kept."""

    state: RecordDict
    identity: SecureIdentity
    announcement: Announcement
    binding: Binding
    category: str
    length: int
    seed: bytes
    bound: bytes
    """The seed of all but the keys: of this session alone, even where entropy is repeated."""
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
        """Begin a session in the place of any before, and return its first message.

        `seed` is that of the keys that this client has advertised.

        Raises:
            SecureAggregationError: `Past` does not allow it.
        """
        Past(state).begin(category, binding)
        plan, roster = announcement.plan(len(vector)), announcement.roster
        kept = cls(
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
        session = kept._session()
        answer = session.share()
        state[ANNOUNCEMENT] = announcement.record()
        state[VECTOR] = params_to_arrays({"vector": vector})
        kept._keep()
        kept._keep_live(session)
        return answer

    @classmethod
    def resume(cls, state: RecordDict, identity: SecureIdentity, session: bytes) -> SavedSession:
        """Return the session that a message belongs to.

        Raises:
            SecureAggregationError: there is none of this id.
        """
        records = state.config_records  # made anew at every look
        if SESSION not in records:
            raise SecureAggregationError("this client is in no session: it ended, or was lost")
        said: Any = records[SESSION]
        announcement = Announcement.read(records[ANNOUNCEMENT])
        if announcement.session != session:
            raise SecureAggregationError("this client is in another session")
        binding = Binding(
            session=announcement.session,
            round=announcement.round,
            model=said["model"],
            configuration=said["configuration"],
            beacon=said["beacon"],
        )
        return cls(
            state=state,
            identity=identity,
            announcement=announcement,
            binding=binding,
            category=said["category"],
            length=said["length"],
            seed=said["seed"],
            bound=said["bound"],
            weight=said["weight"],
            heard=[said[f"heard-{place}"] for place in range(said["heard"])],
        )

    @staticmethod
    def end(state: RecordDict) -> None:
        """Forget the session, if there is one."""
        if SESSION in state:
            _live.pop(cast(bytes, state.config_records[SESSION]["bound"]), None)
        for name in (SESSION, ANNOUNCEMENT, VECTOR):
            if name in state:
                del state[name]

    def answer(self, step: ProtocolStep, message: bytes) -> bytes:
        """Return the answer of one step, from what was heard before and now.

        Raises:
            SecureAggregationError: it is not this step's turn, or something is wrong.
        """
        if step != len(self.heard) + 1:
            at = ProtocolStep(len(self.heard) + 1).name.lower()
            raise SecureAggregationError(
                f"{step.name.lower()} is asked for, but this session is at {at}"
            )
        session = self._so_far()
        said = self._say(session, step, message, self._vector)
        self.heard.append(message)
        if step is ProtocolStep.MASK:
            Past(self.state).mask(self.category, self.binding)
            del self.state[VECTOR]
        if step is ProtocolStep.UNMASK:
            self.end(self.state)
        else:
            self._keep()
            self._keep_live(session)
        return said

    def _so_far(self) -> ClientSession:
        """Return the session as it is after what was heard; the owner may ask for more by now."""
        live = _live.pop(self.bound, None)
        if live is not None and live[0] == self.heard:
            self.identity.minimum.require(self.announcement.plan(self.length).topology)
            return live[1]
        session = self._session()
        session.share()
        for place, earlier in enumerate(self.heard):
            self._say(session, ProtocolStep(place + 1), earlier, self._nothing)
        return session

    def _keep_live(self, session: ClientSession) -> None:
        _live[self.bound] = (list(self.heard), session)
        while len(_live) > LIVE_MAX:
            _live.popitem(last=False)

    def _say(
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

    def _nothing(self) -> tuple[NDArray[Any], int]:
        """Return what is masked when a step that was answered is gone through again."""
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

    def _keep(self) -> None:
        said: dict[str, Any] = {
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
        said |= {f"heard-{place}": message for place, message in enumerate(self.heard)}
        self.state[SESSION] = ConfigRecord(said)
