"""A file beside a ledger that records the ledger's id and the number of its latest entry.

A ledger that was deleted, emptied, replaced, or restored from an old copy is detected the next time it
is opened, unless the mark was lost too.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import StoreError
from .durable import write_file

__all__ = ["LedgerMark"]


class LedgerMark:
    """The mark of one ledger: its id, and the number of its latest entry."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def exists(self) -> bool:
        """Whether a ledger was marked."""
        return self.file.exists()

    def require(
        self, ledger: str, found: tuple[str, int] | None, *, kind: str, remedy: str
    ) -> None:
        """Check that this is the marked ledger with all its entries, if one was marked.

        `found` is its id and number, None if it has none; `kind` names its entries in messages.

        Raises:
            StoreError: it is another one, or entries are missing; `remedy` ends the sentence.
        """
        if not self.exists:
            return
        id_, _, number = self.file.read_text().partition(" ")
        if found is None or found[0] != id_:
            raise StoreError(
                f"{ledger} is not the ledger that {self.file} names: it was deleted, emptied or "
                f"replaced, {remedy}"
            )
        marked = int(number) if number.isdecimal() else 0  # 0: from before numbers were marked
        if found[1] < marked:
            raise StoreError(
                f"{ledger} has {found[1]} of the {marked} {kind} that {self.file} counted: it is from "
                f"an earlier day, {remedy}"
            )

    def advance(self, id_: str, number: int) -> None:
        """Record an entry, after the ledger has it."""
        write_file(self.file, f"{id_} {number}".encode(), mode=0o600)
