"""What an examination of a client finds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    ok: bool
    text: str
    """What was found; if that is not well, also what to do."""
