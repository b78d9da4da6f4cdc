"""A file beside a ledger that says which one it is, and how far it had come.

So a ledger that was deleted, emptied, replaced, or put back from an earlier day is noticed by whoever
opens it next, unless the mark was lost, too.
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
        """Return if this is the marked ledger, with all its entries, or none was marked.

        `found` are its id and number, None if it has none; `kind` says what its entries are.

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
        """Mark an entry, once the ledger has it."""
        write_file(self.file, f"{id_} {number}".encode(), mode=0o600)
