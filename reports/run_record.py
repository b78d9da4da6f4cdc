"""A run folder, finished or under way, as what a report needs of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..config.schema.settings import renamed_settings
from ..config.schema.sources import FILE_BYTES_MAX, read_toml
from ..config.sections.model import Config
from ..errors import ConfigError
from ..strategies.rounds.progress import Progress
from .client_record import ClientRecord, read_clients
from .columns import Columns, Values
from .json_lines import number_in, read_objects, round_in

__all__ = ["PARTS", "UNDER_WAY", "RunRecord", "Scores", "read_run", "read_settings", "round_values"]

PARTS = ("train", "evaluate", "server")
COUNTERS = ("duration_s", "clients", "failures", "bytes_sent", "bytes_received", "virtual_s")
ROW_BYTES_MAX = 1 << 20
UNDER_WAY = "under way"
RENAMED = renamed_settings(Config)
"""Settings that runs of before 0.2 have under their old names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """A round's metrics, by "train.loss" and so on."""

    round: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What is known of a run.

    Attributes:
        settings: every key of its meadow.toml with its value as text.
        columns: a row a round: "train.loss" and the other metrics, `COUNTERS`, "epsilon".
        status: "finished", "stopped", "failed" or `UNDER_WAY` (which may be a run that was killed).
        cause: why it was stopped or failed, "" if unknown.
        final, best: the metrics of these rounds; None before the first one.
    """

    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    columns: Columns = field(default_factory=Columns)
    clients: ClientRecord = field(default_factory=ClientRecord)
    status: str = UNDER_WAY
    cause: str = ""
    final: Scores | None = None
    best: Scores | None = None

    @property
    def elapsed_s(self) -> Values:
        """Seconds from the run's beginning to the end of each round, shape (rounds,)."""
        return np.nancumsum(self.columns.column("duration_s"))


def read_run(folder: Path) -> RunRecord:
    """Read a run folder; of its files any may be missing, but not all.

    Raises:
        ConfigError: it is no run folder, or a file in it is damaged.
    """
    if not any((folder / name).is_file() for name in ("metrics.jsonl", "summary.json")):
        raise ConfigError(f"{folder}: {_why_not_a_run(folder)}")
    columns, final, best = _read_rounds(folder / "metrics.jsonl")
    summary = _read_summary(folder / "summary.json")
    status, cause = summary.get("status"), summary.get("cause")
    said = summary.get("best")
    return RunRecord(
        folder=folder,
        settings=read_settings(folder),
        columns=columns,
        clients=read_clients(folder / "clients.jsonl"),
        status=status if isinstance(status, str) else UNDER_WAY,
        cause=cause if isinstance(cause, str) else "",
        final=final,
        best=(_scores(said) if isinstance(said, dict) else None) or best,
    )


def read_settings(folder: Path) -> dict[str, str]:
    """Return every key of a run folder's meadow.toml with its value as text; empty without one.

    Raises:
        ConfigError: the file is damaged.
    """
    if not (folder / "meadow.toml").is_file():
        return {}
    table = read_toml(folder / "meadow.toml", remedy="a run leaves one")
    return {RENAMED.get(key, key): text for key, text in _flat(table, "")}


def round_values(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an object of metrics.jsonl: "train.loss" and the other finite metrics,
    `COUNTERS`, "epsilon"."""
    values = {key: number_in(found[key]) for key in COUNTERS if key in found}
    privacy = found.get("privacy")
    if isinstance(privacy, dict):
        values["epsilon"] = number_in(privacy.get("epsilon"))
    for part in PARTS:
        metrics = found.get(part)
        if isinstance(metrics, dict):
            values |= {f"{part}.{name}": value for name, value in _finite(metrics).items()}
    return values


def _why_not_a_run(folder: Path) -> str:
    if not folder.is_dir():
        return "there is no such folder; give the folder of a run, as `meadow simulate` names it"
    if (folder / "meadow.toml").is_file() and (folder / "checkpoints").is_dir():
        return "the run has not completed a round; try again later"
    below = sorted(path.parent.name for path in folder.glob("*/metrics.jsonl"))
    if below:
        return f"is no run folder, but holds {len(below)}; give them, as {folder / below[0]}"
    return (
        "is no run folder: it has no metrics.jsonl; give what `meadow simulate --out` or "
        "`meadow run pull` left"
    )


def _read_rounds(path: Path) -> tuple[Columns, Scores | None, Scores | None]:
    columns, progress, last = Columns(), Progress(), None
    for found in read_objects(path, line_bytes_max=ROW_BYTES_MAX):
        number = round_in(found, path)
        row: dict[str, Any] = {"round": number}
        for part in PARTS:
            metrics = found.get(part)
            row[part] = _finite(metrics) if isinstance(metrics, dict) else {}
        columns.add(number, round_values(found))
        progress = progress.after(row, None)
        last = row
    best = progress.best
    return columns, _scores(last) if last else None, _scores(dict(best)) if best else None


def _finite(metrics: Mapping[str, object]) -> dict[str, float]:
    numbers = {name: number_in(value) for name, value in metrics.items()}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def _scores(row: Mapping[str, Any]) -> Scores | None:
    number = row.get("round")
    if not isinstance(number, int):
        return None
    values: dict[str, float] = {}
    for part in PARTS:
        metrics = row.get(part)
        if isinstance(metrics, dict):
            values |= {f"{part}.{name}": value for name, value in _finite(metrics).items()}
    return Scores(round=number, values=values)


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(FILE_BYTES_MAX))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: is no JSON object; remove it if it is damaged")
    return found


def _flat(table: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            shown = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"{above}{name}", shown
