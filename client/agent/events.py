"""The events that an agent reports: a line of text for people, and the same as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["Event", "Report", "size_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event for the owner's log.

    `kind`: connected, disconnected, training, sent, refused, failed, cancelled, renewed, paused,
    listening, warning.
    """

    kind: str
    text: str
    detail: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def level(self) -> str:
        """The log level: INFO or WARNING."""
        troubling = ("disconnected", "refused", "failed", "warning")
        return "WARNING" if self.kind in troubling else "INFO"

    @property
    def line(self) -> str:
        """The event as a line of a log, without its time: level, run and round, text."""
        run = self.detail.get("run")
        named = run is None or self.text.startswith("run ")
        return f"{self.level:<7} {'' if named else f'run {run}, '}{self.text}"


Report = Callable[[Event], None]


def size_text(size_bytes: int) -> str:
    """Return a size for people, for instance "12.3 kB"."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
