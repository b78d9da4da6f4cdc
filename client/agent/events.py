"""What an agent says about itself: a line for a person, and the same as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["Event", "Report", "size_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that its owner may want to know.

    `kind`: connected, disconnected, training, sent, refused, failed, cancelled, renewed, warning.
    """

    kind: str
    text: str
    detail: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def level(self) -> str:
        """How much it asks for attention: INFO or WARNING."""
        troubling = ("disconnected", "refused", "failed", "warning")
        return "WARNING" if self.kind in troubling else "INFO"

    @property
    def line(self) -> str:
        """The event as a line of a log, less its time: level, run and round, and what happened."""
        run = self.detail.get("run")
        named = run is None or self.text.startswith("run ")
        return f"{self.level:<7} {'' if named else f'run {run}, '}{self.text}"


Report = Callable[[Event], None]


def size_text(size_bytes: int) -> str:
    """Return a size as people write it, for instance "12.3 kB"."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
