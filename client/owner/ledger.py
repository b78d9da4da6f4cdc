"""The owner's ledger: the rounds that the data took part in, never fewer, and the refusals."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from ...errors import RefusedError, StoreError
from ...privacy.dp.accounting.events import GaussianEvent, StepsEvent
from ...privacy.dp.noise_terms import NoiseTerms
from ...randomness.entropy import system_entropy
from ...transport.fleet_pb2 import Instruction
from ...transport.ledger_mark import LedgerMark
from .budget import Spending
from .database import AgentDatabase
from .example_budget import Release, steps_of

__all__ = ["REFUSALS_MAX", "Ledger", "content_of"]

REFUSALS_MAX = 10_000
APP_CHARS_MAX = 100
LEDGER_FILE = "ledger"
REMEDY = "and what was spent on this data is not known; restore it from a backup"
ID_BYTES = 16


class Ledger:
    """Participations and refusals, in the agent's database."""

    def __init__(self, database: AgentDatabase) -> None:
        self._database = database
        self._mark: LedgerMark | None = None

    def claim(self, identity: Path) -> None:
        """Bind the ledger to the identity in a folder, if neither is bound yet.

        Raises:
            StoreError: as `require`.
        """
        self._mark = mark = LedgerMark(identity / LEDGER_FILE)
        if not mark.exists:
            with self._database.transaction() as rows:
                known = rows.execute("SELECT id FROM ledger").fetchone()
                if not known:
                    rows.execute("INSERT INTO ledger VALUES (?)", (system_entropy(ID_BYTES).hex(),))
            self._advance(mark)
        self.require(identity)

    def require(self, identity: Path) -> None:
        """Check that this is the complete ledger of the identity in a folder, if it has one.

        Edge cases: a copy of an earlier day is not noticed where the identity is of that day, too.
        Raises:
            StoreError: the ledger is another one, or rows of it are gone: what was spent is not
                known.
        """
        mark = LedgerMark(identity / LEDGER_FILE)
        id_, counted = self._latest()
        found = None if id_ is None else (id_, counted)
        mark.require("agent.sqlite", found, kind="rounds", remedy=REMEDY)
        (row,) = self._database.rows("SELECT count(*) FROM spent")
        if row[0] != counted:
            raise StoreError(
                f"agent.sqlite has {row[0]} of the {counted} rounds that it counted: the others were "
                f"deleted, {REMEDY}"
            )

    def _advance(self, mark: LedgerMark) -> None:
        id_, counted = self._latest()
        assert id_ is not None
        mark.advance(id_, counted)

    def _latest(self) -> tuple[str | None, int]:
        """Return the ledger's id, if it has one, and how many rounds it has counted."""
        (row,) = self._database.rows(
            "SELECT (SELECT id FROM ledger), (SELECT seq FROM sqlite_sequence WHERE name = 'spent')"
        )
        return row[0], int(row[1] or 0)

    def participate(
        self,
        instruction: Instruction,
        *,
        now_s: float,
        noise: NoiseTerms | None = None,
        steps: StepsEvent | None = None,
    ) -> None:
        """Count an instruction before it is executed, with the noise of its round: client-level
        noise, or that of the `steps` of DP-SGD for its examples.

        Guarantees: durable on return; counted once until it is answered, also if it is delivered
            again. It is identified by its content: an id that is repeated with other params, or
            another configuration of the run, is counted again.
        """
        content = content_of(instruction)
        with self._database.transaction() as rows:
            if rows.execute("SELECT 1 FROM spent WHERE content = ?", (content,)).fetchone():
                return
            rows.execute(
                "INSERT INTO spent (content, answered, run_id, round, app, day, cost,"
                " gaussian, record_multiplier, record_rate, record_steps)"
                " VALUES (?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    content,
                    str(instruction.run_id),
                    instruction.envelope.metadata.group_id,
                    instruction.app.name,
                    _day(now_s),
                    None if noise is None else noise.event.cost,
                    noise is not None and isinstance(noise.event, GaussianEvent),
                    None if steps is None else steps.event.event.noise_multiplier,
                    None if steps is None else steps.event.probability,
                    None if steps is None else steps.steps,
                ),
            )
        if self._mark is not None:
            self._advance(self._mark)

    def require_unanswered(self, instruction: Instruction) -> None:
        """Check that an instruction was not answered before: to execute it again would be another
        release, which was not counted.

        Raises:
            RefusedError: it was answered before.
        """
        found = self._database.rows(
            "SELECT 1 FROM spent WHERE content = ? AND answered", (content_of(instruction),)
        )
        if found:
            raise RefusedError(
                "this instruction was answered before, and its reply is no longer stored; to repeat "
                "the round, send a new instruction"
            )

    def spent(self, *, besides: str = "") -> list[Spending]:
        """Return what was spent on this data, by app and run.

        `besides` is the content of an instruction to leave out: a round that is begun again counts
        once.
        """
        found = self._database.rows(
            "SELECT app, run_id, count(*), count(cost), sum(cost), min(gaussian) FROM spent"
            " WHERE content <> ? GROUP BY app, run_id ORDER BY max(number)",
            (besides,),
        )
        stepped = self._steps(besides)
        return [
            Spending(
                app=str(app),
                run_id=str(run_id),
                rounds=int(str(rounds)),
                cost=float(str(cost)) if rounds == noisy else math.inf,
                gaussian=bool(gaussian),
                releases=stepped[str(app), str(run_id)],
            )
            for app, run_id, rounds, noisy, cost, gaussian in found
        ]

    def _steps(self, besides: str) -> dict[tuple[str, str], tuple[Release, ...]]:
        """Return the kinds of rounds of each app and run, and the number of each kind."""
        found = self._database.rows(
            "SELECT app, run_id, cost, record_multiplier, record_rate, record_steps, count(*)"
            " FROM spent WHERE content <> ?"
            " GROUP BY app, run_id, cost, record_multiplier, record_rate, record_steps",
            (besides,),
        )
        made: dict[tuple[str, str], tuple[Release, ...]] = {}
        for app, run_id, cost, multiplier, rate, steps, rounds in found:
            release = Release(
                rounds=int(str(rounds)),
                cost=None if cost is None else float(str(cost)),
                steps=steps_of(multiplier, rate, steps),
            )
            key = str(app), str(run_id)
            made[key] = (*made.get(key, ()), release)
        return made

    def rounds_of_run(self, instruction: Instruction) -> list[int]:
        """Return the other rounds of an instruction's run that this client took part in."""
        found = self._database.rows(
            "SELECT round FROM spent WHERE run_id = ? AND content <> ?",
            (str(instruction.run_id), content_of(instruction)),
        )
        return sorted(int(str(number)) for (number,) in found if str(number).isdecimal())

    def rounds_today(self, *, now_s: float, besides: str = "") -> int:
        """Return how many instructions were counted this UTC day; `besides` as in `spent`."""
        (row,) = self._database.rows(
            "SELECT count(*) FROM spent WHERE day = ? AND content <> ?",
            (_day(now_s), besides),
        )
        return int(str(row[0]))

    def refuse(self, instruction: Instruction, reason: str, *, now_s: float) -> None:
        """Record a refused instruction and the reason; the newest `REFUSALS_MAX` are kept."""
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
        """Return the newest refusals: time in seconds, app, reason."""
        found = self._database.rows(
            "SELECT at_s, app, reason FROM refusals ORDER BY number DESC LIMIT ?", (limit,)
        )
        return [(float(str(at_s)), str(app), str(reason)) for at_s, app, reason in found]


def content_of(instruction: Instruction) -> str:
    """Return the digest of all fields of an instruction."""
    return sha256(instruction.SerializeToString(deterministic=True)).hexdigest()


def _day(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%d")
