"""Compares this machine's clock with the server's, as certificates are valid for a period."""

from __future__ import annotations

import math
import time
from datetime import timedelta

from ...transport.reach import duration

__all__ = ["Clock", "clock_fault"]

SKEW_S_MAX = 60.0


def clock_fault(skew_s: float) -> str | None:
    """Return the fault of a clock that is `skew_s` ahead of the server's, None without a fault."""
    if abs(skew_s) <= SKEW_S_MAX:
        return None
    ahead = "ahead of" if skew_s > 0 else "behind"
    return (
        f"this machine's clock is {duration(timedelta(seconds=min(abs(skew_s), 1e12)))} {ahead} the "
        "server's, and certificates depend on it; set the wrong one (NTP)"
    )


class Clock:
    """The estimated skew of this machine's clock relative to the server's, in seconds."""

    def __init__(self) -> None:
        self.skew_s = 0.0

    def compare(self, server_s: float, *, sent_s: float, received_s: float) -> None:
        """Update the skew by a time that the server reported between two local times; 0 is none."""
        if math.isfinite(server_s) and server_s > 0:
            self.skew_s = (sent_s + received_s) / 2 - server_s

    def server_s(self, now_s: float | None = None) -> float:
        """Return the server's time at a local time, by default now."""
        return (time.time() if now_s is None else now_s) - self.skew_s
