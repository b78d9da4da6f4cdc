"""What the owner's data took part in, and what was refused: a record that never under-counts."""

from __future__ import annotations

from datetime import UTC, datetime

from ..transport.fleet_pb2 import Instruction
from .database import Database

__all__ = ["REFUSALS_MAX", "Ledger"]

REFUSALS_MAX = 10_000
APP_CHARS_MAX = 100


class Ledger:
    """Participations and refusals, in the agent's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def participate(self, instruction: Instruction, *, now_s: float) -> None:
        """Count an instruction before it is executed.

        Guarantees: durable on return; counted once, however often it is delivered.
        """
        with self._database.transaction() as rows:
            rows.execute(
                "INSERT OR IGNORE INTO participations VALUES (?, ?, ?, ?, ?)",
                (
                    instruction.id,
                    str(instruction.run_id),
                    instruction.envelope.metadata.group_id,
                    instruction.app.name,
                    _day(now_s),
                ),
            )

    def rounds_today(self, *, now_s: float, besides: str = "") -> int:
        """Return how many instructions were counted this UTC day, not counting `besides`."""
        (row,) = self._database.rows(
            "SELECT count(*) FROM participations WHERE day = ? AND instruction_id <> ?",
            (_day(now_s), besides),
        )
        return int(str(row[0]))

    def refuse(self, instruction: Instruction, reason: str, *, now_s: float) -> None:
        """Record what was refused, and why; the newest `REFUSALS_MAX` are kept."""
        with self._database.transaction() as rows:
            rows.execute(
                "INSERT INTO refusals (instruction_id, app, at_s, reason) VALUES (?, ?, ?, ?)",
                (instruction.id, instruction.app.name[:APP_CHARS_MAX], now_s, reason),
            )
            rows.execute(
                "DELETE FROM refusals WHERE number <= (SELECT max(number) FROM refusals) - ?",
                (REFUSALS_MAX,),
            )

    def refusals(self, limit: int = 10) -> list[tuple[float, str, str]]:
        """Return the newest refusals: when, which app, why."""
        found = self._database.rows(
            "SELECT at_s, app, reason FROM refusals ORDER BY number DESC LIMIT ?", (limit,)
        )
        return [(float(str(at_s)), str(app), str(reason)) for at_s, app, reason in found]


def _day(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%d")
