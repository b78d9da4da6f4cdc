"""The virtual clock of a simulation: it goes on by what devices would take, not by waiting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from ...errors import QuorumError
from .devices import Devices, DeviceWork
from .timed_step import TimedStep

__all__ = ["Fate", "VirtualClock"]

Ids = NDArray[np.integer]

WAITS_MAX = 10_000
"""So often the clock goes on to the next clients that come, before it gives up."""


class Fate(Enum):
    """What becomes of a message to a device."""

    ANSWERED = "answered"
    FAILED = "failed"
    EXPIRED = "expired"
    """No answer came within the message's time to live."""


@dataclass(frozen=True, slots=True)
class _Arrival:
    at_s: float
    fate: Fate
    client: int


class VirtualClock:
    """Knows when devices' answers arrive, and what time it is.

    Attributes:
        now_s: seconds since the run began.
    """

    def __init__(self, devices: Devices, *, quorum: int = 0) -> None:
        self.devices = devices
        self.now_s = 0.0
        self._quorum = quorum
        self._expected: dict[str, _Arrival] = {}
        self._busy_until_s: dict[int, float] = {}

    # ------------------------------------------------------------------ rounds

    def begin(
        self, clients: Ids, work: DeviceWork, *, occasion: str, deadline_s: float | None
    ) -> TimedStep:
        """Return the step of instructions that go out now."""
        drops, fails = self.devices.fates(clients, occasion)
        arrivals_s = self.now_s + self.devices.durations_s(clients, work)
        return TimedStep(
            np.where(drops, np.inf, arrivals_s),
            fails,
            now_s=self.now_s,
            deadline_s=deadline_s,
            quorum=self._quorum,
        )

    def end(self, step: TimedStep) -> None:
        """Go on to the end of a step."""
        self.now_s = max(self.now_s, step.end_s)

    def wait_for(self, needed: int, *, among: Ids) -> None:
        """Go on to when `needed` of these clients are there at once.

        Raises:
            QuorumError: that does not happen, or not soon.
        """
        began_s = self.now_s
        for _ in range(WAITS_MAX):
            next_s = self.devices.next_there_s(among, self.now_s)
            # before that many have come, there cannot be enough: no such time is passed over
            soonest_s = float(np.partition(next_s, needed - 1)[needed - 1])
            if soonest_s <= self.now_s:
                return
            if np.isinf(soonest_s):
                break
            self.now_s = soonest_s
        raise QuorumError(
            f"from {began_s:.0f} s of virtual time on, {needed} of {len(among)} clients are never there "
            "at once; lower run.min_clients, or change simulation.devices so that more are there"
        )

    # ------------------------------------------------------------------ single messages

    def send(
        self,
        ids: Sequence[str],
        clients: Ids,
        work: DeviceWork,
        *,
        occasion: str,
        ttl_s: Sequence[float],
    ) -> None:
        """Note messages that go out now; a client goes through its own one after another.

        An answer that does not come within `ttl_s` is none: then an error comes.
        """
        drops, fails = self.devices.fates(clients, f"{occasion}/{self.now_s!r}")
        durations_s = self.devices.durations_s(clients, work).tolist()
        busy = {id_: at_s for id_, at_s in self._busy_until_s.items() if at_s > self.now_s}
        for place, client in enumerate(clients.tolist()):
            limit_s = self.now_s + ttl_s[place]
            at_s = busy.get(client, self.now_s) + durations_s[place]
            if drops[place] or at_s > limit_s:
                self._expected[ids[place]] = _Arrival(limit_s, Fate.EXPIRED, client)
                continue
            fate = Fate.FAILED if fails[place] else Fate.ANSWERED
            self._expected[ids[place]] = _Arrival(at_s, fate, client)
            busy[client] = at_s
        self._busy_until_s = busy

    def answers(self, message_id: str) -> bool:
        """Whether an answer to a message is under way."""
        arrival = self._expected.get(message_id)
        return arrival is not None and arrival.fate is Fate.ANSWERED

    def forget(self, ids: Iterable[str]) -> None:
        """Nobody waits for these messages any more: their clients stop working on them."""
        stopped = {arrival.client for id_ in ids if (arrival := self._expected.pop(id_, None))}
        for client in stopped:
            self._busy_until_s.pop(client, None)
        for arrival in self._expected.values():
            if arrival.client in stopped and arrival.fate is not Fate.EXPIRED:
                busy_s = self._busy_until_s.get(arrival.client, 0.0)
                self._busy_until_s[arrival.client] = max(busy_s, arrival.at_s)

    def receive(self, ids: Iterable[str]) -> list[tuple[str, Fate]]:
        """Return what has become of these messages, in order of arrival, each once.

        If nothing has arrived, the clock goes on to the first of them that does.

        Edge cases: nothing is returned for messages that were never sent, or received before.
        """
        asked = {id_: self._expected[id_] for id_ in ids if id_ in self._expected}
        if not asked:
            return []
        self.now_s = max(self.now_s, min(arrival.at_s for arrival in asked.values()))
        ready = [id_ for id_, arrival in asked.items() if arrival.at_s <= self.now_s]
        ready.sort(key=lambda id_: asked[id_].at_s)
        for id_ in ready:
            del self._expected[id_]
        return [(id_, asked[id_].fate) for id_ in ready]
