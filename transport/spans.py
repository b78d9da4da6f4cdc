"""The spans of a round's traces, which record nothing unless `tracing` says otherwise."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

    from .fleet_pb2 import Envelope, Instruction

__all__ = [
    "FAILURES",
    "NO_SPAN",
    "NO_TRACES",
    "PRESENT",
    "Span",
    "Traces",
    "attributes_of",
    "digest",
    "phase",
    "present_span",
]

TEXT_CHARS_MAX: Final = 200
"""Of an attribute; rounds and instructions are named by a peer."""


class Span:
    """A span that may be recorded; this one is not. As a context manager, it ends with the block."""

    def child(self, name: str) -> Span:
        """Begin a span within this one."""
        return self

    def set_outcome(self, outcome: str) -> None:
        """Note how it went, in one word; see `FAILURES`."""

    def end(self) -> None:
        """End the span, once; later calls have no effect."""

    def present(self) -> AbstractContextManager[None]:
        """Make it the span of `phase` within the block, and in the tasks that begin there."""
        return nullcontext()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.set_outcome("failed")
        self.end()


FAILURES: Final = ("failed", "refused", "gone")
"""The outcomes that are errors."""
NO_SPAN: Final = Span()
PRESENT: Final[ContextVar[Span]] = ContextVar("PRESENT", default=NO_SPAN)


def phase(name: str) -> Span:
    """Begin a span within the present one."""
    return PRESENT.get().child(name)


def present_span() -> Span:
    """Return the span of `phase`."""
    return PRESENT.get()


class Traces:
    """Begins the spans of one process; this one records nothing."""

    def round(self, run_id: int, group_id: str) -> Span:
        """Begin the span of a round, in the process that decides it."""
        return NO_SPAN

    def sent(self, instruction: Instruction, *, client: int) -> Span:
        """Begin the server's span of an instruction, until it is answered."""
        return NO_SPAN

    def received(self, instruction: Instruction, *, client: int) -> Span:
        """Begin the client's span of an instruction, until its reply is delivered."""
        return NO_SPAN

    def close(self) -> None:
        """Export what has ended, within seconds; the end of the process does it, too."""


NO_TRACES: Final = Traces()


def attributes_of(
    run_id: int, group_id: str, instruction_id: str = "", envelope: Envelope | None = None
) -> dict[str, str]:
    """Return the attributes of a span, as texts: a run's number has up to 64 bits."""
    found = {"meadow.run": str(run_id), "meadow.round": group_id[:TEXT_CHARS_MAX]}
    if instruction_id:
        found["meadow.instruction"] = instruction_id[:TEXT_CHARS_MAX]
    if envelope is not None:
        found["meadow.message_type"] = envelope.metadata.message_type[:TEXT_CHARS_MAX]
    return found


def digest(size_bytes: int, *parts: object) -> int:
    """Return a number of so many bytes, other than 0, which stands for the parts."""
    said = b"".join(
        len(text).to_bytes(8, "big") + text for text in (str(part).encode() for part in parts)
    )
    return int.from_bytes(hashlib.sha256(said).digest()[:size_bytes], "big") or 1
