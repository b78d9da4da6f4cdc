"""What the owner's data took part in, and what was refused: a record that never under-counts."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from hashlib import sha256

from ..transport.fleet_pb2 import Instruction
from .budget import Spending
from .database import Database

__all__ = ["REFUSALS_MAX", "Ledger", "content_of"]

REFUSALS_MAX = 10_000
APP_CHARS_MAX = 100


class Ledger:
    """Participations and refusals, in the agent's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def participate(
        self, instruction: Instruction, *, now_s: float, noise_multiplier: float | None = None
    ) -> None:
        """Count an instruction before it is executed, and the noise that its round will have.

        Guarantees: durable on return; counted once, however often it is delivered. What it costs
            is counted by its content: an id that comes again with other params costs again.
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
            rows.execute(
                "INSERT OR IGNORE INTO spent VALUES (?, ?, ?, ?)",
                (
                    content_of(instruction),
                    str(instruction.run_id),
                    instruction.app.name,
                    noise_multiplier,
                ),
            )

    def spent(self, *, besides: str = "") -> list[Spending]:
        """Return what this data was spent on, app by app and run by run.

        `besides` is the content of an instruction that is not counted: a round that was begun and
        is begun again is one.
        """
        found = self._database.rows(
            "SELECT app, run_id, count(*), count(multiplier),"
            " sum(1 / (multiplier * multiplier)) FROM spent"
            " WHERE content <> ? GROUP BY app, run_id ORDER BY max(rowid)",
            (besides,),
        )
        return [
            Spending(
                app=str(app),
                run_id=str(run_id),
                rounds=int(str(rounds)),
                cost=float(str(cost)) if rounds == noisy else math.inf,
            )
            for app, run_id, rounds, noisy, cost in found
        ]

    def rounds_of_run(self, instruction: Instruction) -> list[int]:
        """Return which rounds of an instruction's run were taken part in, not counting its own."""
        found = self._database.rows(
            "SELECT round FROM participations WHERE run_id = ? AND instruction_id <> ?",
            (str(instruction.run_id), instruction.id),
        )
        return sorted(int(str(said)) for (said,) in found if str(said).isdecimal())

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


def content_of(instruction: Instruction) -> str:
    """Return the digest of all that decides what an instruction makes of the data."""
    digest = sha256(f"{instruction.id}\0{instruction.run_id}\0{instruction.app.name}\0".encode())
    digest.update(instruction.envelope.SerializeToString(deterministic=True))
    return digest.hexdigest()


def _day(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%d")
