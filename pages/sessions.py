"""Who may see the pages: browsers that were opened by a one-time link.

A link is printed where the pages are served, and opens one browser; then the next is printed.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["BrowserSession", "Sessions"]

SECRET_BYTES: Final = 32
SESSIONS_MAX: Final = 16
"""With one more, the session that was used least recently ends."""
SESSION_IDLE_S: Final = 8 * 3600.0


@dataclass(slots=True)
class BrowserSession:
    """A browser that is signed in."""

    form_key: str
    """What every form must send: another site does not know it."""
    used_at_s: float


class Sessions:
    """One-time links and the sessions that they have opened; all of them end with the process."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._link = ""
        self._open: OrderedDict[str, BrowserSession] = OrderedDict()

    def new_link(self) -> str:
        """Return the secret of a new link; the one before is void."""
        with self._lock:
            self._link = secrets.token_urlsafe(SECRET_BYTES)
            return self._link

    def enter(self, secret: str) -> str | None:
        """Use a link up; return the cookie of the session that it opens, None if it opens none."""
        with self._lock:
            if not self._link or not hmac.compare_digest(secret.encode(), self._link.encode()):
                return None
            self._link, cookie = "", secrets.token_urlsafe(SECRET_BYTES)
            self._open[cookie] = BrowserSession(secrets.token_urlsafe(SECRET_BYTES), self._clock())
            while len(self._open) > SESSIONS_MAX:
                self._open.popitem(last=False)
            return cookie

    def find(self, cookie: str) -> BrowserSession | None:
        """Return the session of a cookie, and count it as used; None if there is none."""
        with self._lock:
            session = self._open.get(cookie)
            if session is None:
                return None
            if self._clock() - session.used_at_s > SESSION_IDLE_S:
                del self._open[cookie]
                return None
            session.used_at_s = self._clock()
            self._open.move_to_end(cookie)
            return session

    def leave(self, cookie: str) -> None:
        """End a session."""
        with self._lock:
            self._open.pop(cookie, None)
