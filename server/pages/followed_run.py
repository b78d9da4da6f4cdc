"""A run on a server, followed over the network: its rounds and events, for pages that show it."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

import grpc

from ...transport import fleet_pb2 as pb

__all__ = ["FollowedRun", "RunStream"]

ROUNDS_KEPT_MAX: Final = 20_000
EVENTS_KEPT_MAX: Final = 200
CLOSE_S: Final = 5.0


class RunStream(Protocol):
    """A call of `Watch`."""

    def __iter__(self) -> Iterator[pb.RunEvent]: ...

    def cancel(self) -> bool: ...


class FollowedRun:
    """Reads a run's events in a thread, past ones first, until it is over or closed."""

    def __init__(
        self,
        watch: Callable[[], RunStream],
        named: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> None:
        """`named` adds the names of sites to an event."""
        self._named = named
        self._changed = threading.Condition()
        self._rounds: deque[Mapping[str, Any]] = deque(maxlen=ROUNDS_KEPT_MAX)
        self._events: deque[tuple[float, str, Mapping[str, Any]]] = deque(maxlen=EVENTS_KEPT_MAX)
        self._failures: deque[tuple[float, str, Mapping[str, Any]]] = deque(maxlen=EVENTS_KEPT_MAX)
        self.budget: Mapping[str, Any] = {}
        self.ended = False
        self._stream = watch()
        self._thread = threading.Thread(target=self._read, name="followed run", daemon=True)
        self._thread.start()

    def wait_for(self, round: int | None, wait_s: float) -> None:
        """Wait until a round is here, or everything for None, for at most `wait_s` seconds."""

        def is_here() -> bool:
            return self.ended or (round is not None and (not round or self._has(round)))

        with self._changed:
            self._changed.wait_for(is_here, timeout=wait_s)

    def rounds(self) -> list[Mapping[str, Any]]:
        """Return the last committed rounds, in their order."""
        with self._changed:
            return list(self._rounds)

    def events(self) -> list[tuple[float, str, Mapping[str, Any]]]:
        """Return the last events but rounds: when (s since 1970), kind, detail."""
        with self._changed:
            return list(self._events)

    def failures(self) -> list[tuple[float, str, Mapping[str, Any]]]:
        """Return the last failures of clients, and replies that were refused."""
        with self._changed:
            return list(self._failures)

    def close(self) -> None:
        """End the call."""
        self._stream.cancel()
        self._thread.join(CLOSE_S)

    def _has(self, round: int) -> bool:
        return bool(self._rounds) and self._rounds[-1].get("round", 0) >= round

    def _read(self) -> None:
        try:
            for event in self._stream:
                self._take(event.at_s, event.kind, json.loads(event.json))
        except (grpc.RpcError, ValueError):
            pass  # a page that is opened later begins anew, and says what is wrong
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def _take(self, at_s: float, kind: str, detail: Any) -> None:
        if not isinstance(detail, dict):
            return
        if "client" in detail or "missing" in detail:
            detail = self._named(detail)
        with self._changed:
            if kind == "round_committed":
                while self._has(detail.get("round", 0)):  # it was rolled back by a resume
                    self._rounds.pop()
                self._rounds.append(detail)
            elif kind in ("client_failed", "update_refused", "evaluation_refused"):
                self._failures.append((at_s, kind, detail))
            elif kind == "privacy_budget":
                self.budget = detail
            elif kind != "round_started":
                self._events.append((at_s, kind, detail))
            self._changed.notify_all()
