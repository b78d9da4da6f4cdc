"""What was measured of real devices, from CSV files: when each is there, and how fast it is.

A client is a whole number from 1 on, as in events and in clients.jsonl.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError

__all__ = ["MARGIN_S", "SpeedTable", "Trace"]

Ids = NDArray[np.integer]
Numbers = NDArray[np.float64]

PERIOD_COLUMNS = ("client", "start_s", "end_s")
SPEED_COLUMNS = ("examples_per_s", "download_bytes_per_s", "upload_bytes_per_s")
MARGIN_S = 1e-6
"""A time at which a client is there is that much into its period: rounding must not undo it."""
PERIODS_MAX = 10_000_000
"""Of a trace: 0.7 GB of memory while it is read, and half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The periods in which clients are available; the trace repeats after its last period.

    Shapes: all are (periods,), in the order of the clients, then of time.
    Edge cases: a client that has no period is never there.
    """

    clients: NDArray[np.int64]
    starts_s: Numbers
    ends_s: Numbers
    _keys: NDArray[np.complex128] = field(init=False)

    def __post_init__(self) -> None:
        keys = self.clients + 1j * self.starts_s  # complex numbers are ordered as pairs
        object.__setattr__(self, "_keys", keys)

    @classmethod
    def read(cls, path: Path, *, clients: int) -> Trace:
        """Read a file with the columns client, start_s and end_s: a row a period.

        Memory: 40 bytes a period, and at most twice that while it is read.

        Raises:
            ConfigError: it cannot be read, names a client beyond `clients`, has more than
                `PERIODS_MAX` periods, or two periods of a client overlap.
        """
        clients_read, starts_read, ends_read = array("q"), array("d"), array("d")
        for where, row in _rows(path, PERIOD_COLUMNS):
            start_s, end_s = row[1:]
            if not 0 <= start_s < end_s:
                raise ConfigError(
                    f"{where}: a period must have 0 <= start_s < end_s, got {start_s:g} to {end_s:g}"
                )
            if len(clients_read) == PERIODS_MAX:
                raise ConfigError(
                    f"{where}: a trace has at most {PERIODS_MAX:,} periods; leave out later ones (it begins "
                    "anew after its last), or draw them with simulation.devices.available_share"
                )
            clients_read.append(_client(where, row[0], clients))
            starts_read.append(start_s)
            ends_read.append(end_s)
        if not clients_read:
            raise ConfigError(f"{path} has no periods; give a row a period, as 3,0,3600")
        ids, starts_s, ends_s = map(np.asarray, (clients_read, starts_read, ends_read))
        order = np.lexsort((starts_s, ids))
        ids, starts_s, ends_s = ids[order], starts_s[order], ends_s[order]
        overlaps = np.flatnonzero((ids[1:] == ids[:-1]) & (starts_s[1:] < ends_s[:-1]))
        if len(overlaps):
            first = int(overlaps[0])
            raise ConfigError(
                f"{path}: the periods of client {ids[first]} from {starts_s[first]:g} s and from "
                f"{starts_s[first + 1]:g} s overlap; make one of them"
            )
        return cls(clients=ids, starts_s=starts_s, ends_s=ends_s)

    @property
    def length_s(self) -> float:
        """When the trace begins anew."""
        return float(self.ends_s.max())

    def available(self, ids: Ids, now_s: float) -> NDArray[np.bool_]:
        """Return which of these clients are there."""
        within_s = now_s % self.length_s
        return self._is_in(self._last(ids, within_s), ids, within_s)

    def next_there_s(self, ids: Ids, now_s: float) -> Numbers:
        """Return when each of these clients is there next: now, later, or never (inf)."""
        within_s = now_s % self.length_s
        last = self._last(ids, within_s)
        later_s = self._start_s(last + 1, ids) - within_s
        anew_s = self._start_s(self._last(ids, -1.0) + 1, ids) + self.length_s - within_s
        wait_s = np.minimum(later_s, anew_s) + MARGIN_S
        return now_s + np.where(self._is_in(last, ids, within_s), 0.0, wait_s)

    def _last(self, ids: Ids, within_s: float) -> NDArray[np.int64]:
        """Return the place of each client's last period that has begun, -1 or another's if none."""
        places = np.searchsorted(self._keys, ids + 1j * np.full(len(ids), within_s), side="right")
        return places.astype(np.int64) - 1

    def _is_in(self, places: NDArray[np.int64], ids: Ids, within_s: float) -> NDArray[np.bool_]:
        own = (places >= 0) & (self.clients[places] == ids)
        return np.asarray(own & (within_s < self.ends_s[places]))

    def _start_s(self, places: NDArray[np.int64], ids: Ids) -> Numbers:
        inside = np.minimum(places, len(self.clients) - 1)
        own = (places < len(self.clients)) & (self.clients[inside] == ids)
        return np.where(own, self.starts_s[inside], math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedTable:
    """Speeds that are known of some clients.

    Shapes: `clients` (known,) ascending; `columns` name -> (known,), NaN for missing values.
    """

    clients: NDArray[np.int64]
    columns: dict[str, Numbers]

    @classmethod
    def read(cls, path: Path, *, clients: int) -> SpeedTable:
        """Read a file with the columns client, and examples_per_s, download_bytes_per_s or
        upload_bytes_per_s: those that are known. A cell may be empty.

        Raises:
            ConfigError: it cannot be read, or names a client twice, or beyond `clients`.
        """
        known: dict[int, list[float]] = {}
        for where, row in _rows(path, ("client",), SPEED_COLUMNS):
            client = _client(where, row[0], clients)
            if client in known:
                raise ConfigError(f"{where}: client {client} has a row before; leave one of them")
            slow = [speed for speed in row[1:] if speed <= 0]
            if slow:
                raise ConfigError(f"{where}: a speed must be > 0, got {slow[0]:g}")
            known[client] = row[1:]
        ids = sorted(known)
        values = np.array([known[client] for client in ids]).reshape(len(ids), len(SPEED_COLUMNS))
        return cls(
            clients=np.array(ids, np.int64), columns=dict(zip(SPEED_COLUMNS, values.T, strict=True))
        )

    def over(self, drawn: Numbers, ids: Ids, column: str) -> Numbers:
        """Return `drawn`, with what is known of these clients in its place."""
        if not len(self.clients):
            return drawn
        places = np.minimum(np.searchsorted(self.clients, ids), len(self.clients) - 1)
        known = np.where(self.clients[places] == ids, self.columns[column][places], math.nan)
        return np.where(np.isnan(known), drawn, known)


def _client(where: str, number: float, clients: int) -> int:
    if not (number.is_integer() and 1 <= number <= clients):
        raise ConfigError(
            f"{where}: client must be a whole number from 1 to {clients}, got {number:g}"
        )
    return int(number)


def _rows(
    path: Path, needed: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[str, list[float]]]:
    """Yield where each row is, and its numbers in the order of the columns that are asked for."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            names = [name.strip() for name in table.fieldnames or ()]
            table.fieldnames = names
            if set(needed) - set(names) or set(names) - {*needed, *optional}:
                also = f", and may be {', '.join(optional)}" if optional else ""
                raise ConfigError(
                    f"{path}: the first line must name the columns {', '.join(needed)}{also}; "
                    f"got {', '.join(names) or 'nothing'}"
                )
            for row in table:
                where = f"{path}, line {table.line_num}"
                numbers = [
                    _number(where, name, row.get(name), name in needed)
                    for name in (*needed, *optional)
                ]
                yield where, numbers
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read: {reason}; it must be a CSV file") from None


def _number(where: str, name: str, text: str | None, needed: bool) -> float:
    if not (text or "").strip() and not needed:
        return math.nan
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{where}: {name} must be a number, got {text!r}")
    return number
