"""The privacy ledger of a server, over all its runs: privacy.sqlite in its folder.

Before a run begins, all its planned releases are recorded; at its end they are lowered to those
that it made. So concurrent runs count each other, and a run that died counts as planned. A resumed
run keeps its entry. The epsilon is that of a client in every run: tags and attendance do not
lower it.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ..config.server_config import load_server_config
from ..errors import ConfigError
from ..privacy.dp.accounting.composition import Release, Releases, epsilon_of_releases
from ..privacy.dp.accounting.events import (
    ConcentratedEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonEvent,
)
from ..randomness.entropy import system_entropy
from ..transport.database import Database, TableLayout
from ..transport.ledger_mark import LedgerMark

__all__ = [
    "POPULATION_LAYOUT",
    "AskedReleases",
    "PopulationLedger",
    "RunShare",
    "Unit",
    "open_population",
]

Unit = Literal["client", "record"]

ID_BYTES = 16
_VERSION_1: Final = """
CREATE TABLE asked (
    run_id INTEGER NOT NULL,
    place INTEGER NOT NULL,
    unit TEXT NOT NULL,              -- whom the noise hides: a client, a record, or nobody
    law TEXT NOT NULL,
    noise_multiplier REAL NOT NULL,
    probability REAL NOT NULL,       -- of taking part, by a secret coin
    count INTEGER NOT NULL,
    PRIMARY KEY (run_id, place)
);
"""

_VERSION_2: Final = """
CREATE TABLE ledger (
    id TEXT PRIMARY KEY,             -- one row: what the mark beside the file must say, too
    number INTEGER NOT NULL          -- of the latest change
);
"""


def _name(db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO ledger VALUES (?, 0)", (system_entropy(ID_BYTES).hex(),))


POPULATION_LAYOUT: Final = TableLayout(
    versions=((_VERSION_1,), (_VERSION_2, _name)),
    sealed={"asked": ("run_id", "place"), "ledger": ("id",)},
    remedy="restore it from a backup that has all runs",
)
LAWS: Mapping[str, type[GaussianEvent | ConcentratedEvent | LaplaceEvent]] = {
    "gaussian": GaussianEvent,
    "concentrated": ConcentratedEvent,
    "laplace": LaplaceEvent,
}
NAMES = {law: name for name, law in LAWS.items()}
FILE = "privacy.sqlite"
MARK_FILE = "ledger"
NOBODY = "nobody"
KEYS: Mapping[Unit, str] = {"client": "epsilon_max", "record": "record_epsilon_max"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedReleases:
    """Releases of one kind that a run makes; `law` is "none" for a run without noise."""

    run_id: int
    unit: str
    law: str
    noise_multiplier: float
    probability: float
    count: int

    @property
    def event(self) -> Release:
        """The mechanism of one of these releases, for the accountant."""
        event = LAWS[self.law](noise_multiplier=self.noise_multiplier)
        if self.probability == 1:
            return event
        assert isinstance(event, GaussianEvent)
        return PoissonEvent(probability=self.probability, event=event)


class PopulationLedger:
    """The privacy ledger of a server.

    `bounds` are the largest epsilon of a client and of an example; None is no bound.

    Guarantees: writes are durable on return; several processes may write at the same time.
    Raises:
        StoreError: the file is damaged, or the disk is full.
    """

    def __init__(
        self, path: Path, *, delta: float, bounds: Mapping[Unit, float | None] | None = None
    ) -> None:
        self.delta = delta
        self._bounds = bounds or {}
        self._mark = LedgerMark(path.parent / MARK_FILE)
        if not path.exists():  # opening it makes it
            self._require_marked(path, None)
        self._db = Database(path, POPULATION_LAYOUT)
        try:
            self._db.check()
            self._require_marked(path, self._latest())
        except BaseException:
            self._db.close()
            raise

    def rows(self) -> list[AskedReleases]:
        """Return the releases of all runs, planned or made."""
        return [
            AskedReleases(**{key: value for key, value in row.items() if key != "place"})
            for row in self._db.sealed("asked", "ORDER BY run_id, place")
        ]

    def epsilon(self, unit: Unit, rows: list[AskedReleases] | None = None) -> float:
        """Return the epsilon of all runs together, for a client or an example in all of them.

        Edge cases: infinite if a run had no noise; for a client, also if its noise hides only
            examples.
        """
        asked = [row for row in (self.rows() if rows is None else rows) if row.count]
        hidden = {"client"} if unit == "client" else {"client", "record"}
        if any(row.unit not in hidden for row in asked):
            return math.inf
        return epsilon_of_releases([(row.event, row.count) for row in asked], self.delta)

    def ask(self, run_id: int, unit: Unit | None, releases: Releases) -> None:
        """Record the planned releases of a run, in place of its earlier ones.

        Raises:
            ConfigError: all runs together would exceed a bound; nothing is recorded.
        """
        asked = _rows_of(run_id, unit, releases)
        while True:
            before = self.rows()
            others = [row for row in before if row.run_id != run_id]
            self._require_within(run_id, others, asked)  # takes a while, so the file is not locked
            with self._db.transaction():
                if self.rows() != before:
                    continue
                self._replace(run_id, asked)
            if unit is not None or self._mark.exists:
                self._mark.advance(*self._latest())
            return

    def settle(self, run_id: int, unit: Unit | None, releases: Releases) -> None:
        """Record the releases that a finished run made."""
        with self._db.transaction():
            self._replace(run_id, _rows_of(run_id, unit, releases))

    def _require_marked(self, path: Path, found: tuple[str, int] | None) -> None:
        what = "and what runs asked of clients is not known; restore it from a backup, or delete"
        remedy = f"{what} {self._mark.file} to count from nothing"
        self._mark.require(str(path), found, kind="changes", remedy=remedy)

    def _latest(self) -> tuple[str, int]:
        (row,) = self._db.sealed("ledger", "")
        return str(row["id"]), int(row["number"])

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _replace(self, run_id: int, asked: list[AskedReleases]) -> None:
        """Replace a run's rows; call it within a transaction."""
        self._db.rows("UPDATE ledger SET number = number + 1")
        self._db.rows("DELETE FROM asked WHERE run_id = ?", (run_id,))
        for place, row in enumerate(asked):
            values: tuple[Any, ...] = (row.noise_multiplier, row.probability, row.count)
            self._db.rows(
                "INSERT INTO asked VALUES (?, ?, ?, ?, ?, ?, ?)",
                (run_id, place, row.unit, row.law, *values),
            )

    def _require_within(
        self, run_id: int, others: list[AskedReleases], asked: list[AskedReleases]
    ) -> None:
        for unit, key in KEYS.items():
            bound = self._bounds.get(unit)
            if bound is None:
                continue
            after = self.epsilon(unit, [*others, *asked])
            if after <= bound:
                continue
            if math.isinf(after):
                raise ConfigError(_without_noise(run_id, unit, key, bound, [*others, *asked]))
            raise ConfigError(
                f"{key} in server.toml is {bound:g}: all runs of this server would cost a {unit} "
                f"epsilon = {after:.4g} with run {run_id}, and cost "
                f"{self.epsilon(unit, others):.4g} without it, at delta = {self.delta:g}; give the "
                f"run more noise or fewer rounds, or raise {key}"
            )


def open_population(folder: Path) -> PopulationLedger:
    """Return the ledger of a server's folder, with the current bounds of its server.toml.

    Raises:
        ConfigError: server.toml is invalid.
        StoreError: the ledger is damaged.
    """
    config = load_server_config(folder)
    bounds: dict[Unit, float | None] = {
        "client": config.epsilon_max,
        "record": config.record_epsilon_max,
    }
    return PopulationLedger(folder / FILE, delta=config.delta, bounds=bounds)


@dataclass(frozen=True, slots=True)
class RunShare:
    """One run's entry in the server's ledger."""

    ledger: PopulationLedger
    run_id: int

    def ask(self, unit: Unit | None, releases: Releases) -> None:
        """Call `PopulationLedger.ask`; the unit is None for a run without noise."""
        self.ledger.ask(self.run_id, unit, releases)

    def settle(self, unit: Unit, releases: Releases) -> None:
        """Call `PopulationLedger.settle`."""
        self.ledger.settle(self.run_id, unit, releases)


def _rows_of(run_id: int, unit: Unit | None, releases: Releases) -> list[AskedReleases]:
    if unit is None:
        return [
            AskedReleases(
                run_id=run_id,
                unit=NOBODY,
                law="none",
                noise_multiplier=0.0,
                probability=1.0,
                count=1,
            )
        ]
    return [_row_of(run_id, unit, event, count) for event, count in releases]


def _row_of(run_id: int, unit: Unit, event: Release, count: int) -> AskedReleases:
    sampled = isinstance(event, PoissonEvent)
    released = event.event if isinstance(event, PoissonEvent) else event
    return AskedReleases(
        run_id=run_id,
        unit=unit,
        law=NAMES[type(released)],
        noise_multiplier=released.noise_multiplier,
        probability=event.probability if sampled else 1.0,  # type: ignore[union-attr]
        count=count,
    )


def _without_noise(
    run_id: int, unit: Unit, key: str, bound: float, rows: list[AskedReleases]
) -> str:
    hidden = {"client"} if unit == "client" else {"client", "record"}
    run = max(row.run_id for row in rows if row.unit not in hidden)
    adds = "adds no noise" if unit == "record" else "adds no noise that hides a client"
    problem = f"{key} in server.toml is {bound:g}, and run {run} {adds}: "
    if run == run_id:
        return problem + f"set [privacy.differential_privacy] in its meadow.toml, or remove {key}"
    return problem + f"its participants have no bound any more; remove {key}"
