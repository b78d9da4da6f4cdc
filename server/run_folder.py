"""The run folder: what every run leaves, simulated or real, and what it goes on from.

    meadow.toml        the resolved configuration
    metrics.jsonl      one JSON object a round
    clients.jsonl      likewise, what single clients reported
    model.safetensors  the params of the last committed round
    checkpoints/       the last two rounds: a manifest each, and the files that it names
    tensorboard/       the metrics as TensorBoard events
    summary.json       how the run ended

A round is committed when its manifest has its name: everything that the manifest refers to is
durable by then, and checked by its CRC-32 when the run goes on. Where rounds can be repeated, as in
a simulation, a run may be slower to commit them: then it goes on from the last one that it did.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord

from ..errors import MeadowError, StoreError
from ..flower import params_to_arrays, tensors_of
from ..strategies.adapter import RunResult
from ..strategies.algorithm import Params, State
from ..strategies.recorder import Checkpoint, RoundTable, Row
from ..transport.durable import sweep, write_file
from ..transport.tensors import TensorFile, checksum, write_tensors
from .round_lines import RoundLines, as_json
from .tensorboard import EventFile

__all__ = ["RunFolder"]

CHECKPOINTS_KEPT = 2
FILE_BYTES_MAX = 1 << 40
SLOT_SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class _ClientStates:
    save: Callable[[], Mapping[str, str]]
    load: Callable[[Mapping[str, str]], None]


class RunFolder:
    """A run's folder; a `Recorder` for the strategy."""

    def __init__(
        self,
        folder: Path,
        *,
        config_toml: str,
        on_event: Callable[[str, Mapping[str, Any]], None],
        pause_s: float = 0.0,
    ) -> None:
        """Open a run's folder, new or interrupted.

        Units: `pause_s` seconds at least are between two rounds that are made durable; the last
            one is in any case. 0 makes every round durable before the next begins.

        Raises:
            StoreError: the folder cannot be written.
        """
        self.folder = folder
        self._checkpoints = folder / "checkpoints"
        self._on_event = on_event
        self._client_states: _ClientStates | None = None
        self._told_round = 0
        self._pause_s = pause_s
        self._durable_at_s = -math.inf
        self._pending: tuple[Checkpoint, Row] | None = None
        self._rows = RoundLines(folder / "metrics.jsonl")
        self._tables = RoundLines(folder / "clients.jsonl")
        self._spent_s = 0.0
        """What the rounds took before this process went on from them."""
        try:
            self._checkpoints.mkdir(parents=True, exist_ok=True)
            sweep(folder)
            sweep(self._checkpoints)
            write_file(folder / "meadow.toml", config_toml.encode())
            (folder / "summary.json").unlink(missing_ok=True)
            self._events = EventFile(folder / "tensorboard", created_at_s=time.time())
        except OSError as error:
            raise StoreError(f"{folder} cannot be written: {error.strerror}") from error

    def keep_client_states(
        self,
        save: Callable[[], Mapping[str, str]],
        load: Callable[[Mapping[str, str]], None],
    ) -> None:
        """Keep simulated clients' states with the checkpoints: `save` makes them durable and
        returns what `load` finds them by, for as long as the checkpoint is kept."""
        self._client_states = _ClientStates(save, load)

    @property
    def durable(self) -> bool:
        """Whether every round is durable before the next begins."""
        return self._pause_s == 0

    # ------------------------------------------------------------------ what the strategy asks

    def event(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Tell people what happens."""
        self._on_event(kind, detail)

    def commit(self, checkpoint: Checkpoint, row: Row, table: RoundTable) -> ArrayRecord:
        """Keep a round, and make it durable if it is time to; returns its params.

        Raises:
            StoreError: the disk is full or fails; the round before is intact.
        """
        waits = time.monotonic() < self._durable_at_s + self._pause_s
        arrays = params_to_arrays(checkpoint.state.params)
        if not waits:
            arrays = self._make_durable(checkpoint, row)
        self._append(row)
        if table.train.clients:
            self._tables.append(table.line())
        self._pending = (checkpoint, row) if waits else None
        return arrays

    def _make_durable(self, checkpoint: Checkpoint, row: Row) -> ArrayRecord:
        stem = f"round-{checkpoint.state.round:06d}"
        params_path = self._checkpoints / f"{stem}.safetensors"
        files = {"params": self._write(params_path, checkpoint.state.params)}
        if checkpoint.state.slots:
            slots = {
                f"{slot}{SLOT_SEPARATOR}{name}": values
                for slot, params in checkpoint.state.slots.items()
                for name, values in params.items()
            }
            files["slots"] = self._write(self._checkpoints / f"{stem}.slots.safetensors", slots)
        manifest = {
            "round": checkpoint.state.round,
            "files": files,
            "slots": list(checkpoint.state.slots),
            "best": checkpoint.best,
            "stale_rounds": checkpoint.stale_rounds,
            "row": row,
            "clients": self._client_states.save() if self._client_states else {},
        }
        write_file(self._checkpoints / f"{stem}.json", as_json(manifest))
        self._publish(params_path)
        self._drop_old()
        self._durable_at_s = time.monotonic()
        info = files["params"]
        return _read(params_path, size_max=info["size_bytes"], crc32=info["crc32"])

    def resume(self) -> Checkpoint | None:
        """Return the newest intact checkpoint; a damaged one is told and passed over.

        Raises:
            StoreError: there are checkpoints, and all are damaged.
        """
        manifests = sorted(self._checkpoints.glob("round-*.json"), reverse=True)
        for path in manifests:
            try:
                return self._resume_from(path)
            except (MeadowError, ValueError, KeyError, TypeError) as error:
                self.event("checkpoint_damaged", {"file": path.name, "reason": str(error)})
        if manifests:
            raise StoreError(
                f"all checkpoints in {self._checkpoints} are damaged; restore them from a backup, "
                "or begin a new run"
            )
        self._rows.repair(0)
        self._tables.repair(0)
        return None

    # ------------------------------------------------------------------ parts of it

    def _write(self, path: Path, params: Params) -> dict[str, Any]:
        info = write_tensors(path, params, fsync=True)
        return {"name": path.name, "size_bytes": info.size_bytes, "crc32": info.crc32}

    def _publish(self, params_path: Path) -> None:
        """Make model.safetensors another name of the params' file."""
        target = self.folder / "model.safetensors"
        link = self.folder / ".model.safetensors.tmp"
        try:
            link.unlink(missing_ok=True)
            os.link(params_path, link)
            os.replace(link, target)
            link.unlink(missing_ok=True)  # POSIX: replacing a file by itself leaves both names
        except OSError as error:
            raise StoreError(f"{target} cannot be written: {error.strerror}") from error

    def _resume_from(self, path: Path) -> Checkpoint:
        manifest = json.loads(path.read_text())
        tensors = {key: self._verified(file) for key, file in manifest["files"].items()}
        params = {name: tensor.numpy() for name, tensor in tensors_of(tensors["params"]).items()}
        slots: dict[str, dict[str, Any]] = {slot: {} for slot in manifest["slots"]}
        if slots:
            for name, tensor in tensors_of(tensors["slots"]).items():
                slot, _, param = name.partition(SLOT_SEPARATOR)
                slots[slot][param] = tensor.numpy()
        if self._client_states is not None:
            self._client_states.load(manifest["clients"])
        self._publish(self._checkpoints / manifest["files"]["params"]["name"])
        history = self._rows.repair(manifest["round"], manifest["row"])
        self._tables.repair(manifest["round"])
        self._spent_s = sum(row.get("duration_s") or 0.0 for row in history)
        return Checkpoint(
            state=State(params=params, round=manifest["round"], slots=slots),
            best=manifest["best"],
            stale_rounds=manifest["stale_rounds"],
            history=history,
        )

    def _verified(self, file: Mapping[str, Any]) -> ArrayRecord:
        path = self._checkpoints / Path(file["name"]).name
        found = checksum(path)
        if (found.size_bytes, found.crc32) != (file["size_bytes"], file["crc32"]):
            raise StoreError(f"{path} does not have the checksum that it was written with")
        return _read(path, size_max=found.size_bytes, crc32=found.crc32)

    def _drop_old(self) -> None:
        manifests = sorted(self._checkpoints.glob("round-*.json"), reverse=True)
        for manifest in manifests[CHECKPOINTS_KEPT:]:
            manifest.unlink()  # first: what is left over of a round without one is not used
            for path in self._checkpoints.glob(f"{manifest.stem}.*"):
                _remove(path)

    # ------------------------------------------------------------------ metrics

    def append_row(self, row: Row) -> None:
        """Record a round of an app that has no checkpoints (a plain Flower app)."""
        self._append(row)
        if row["round"] > self._told_round:
            self.event("round_committed", row)

    def save_model(self, arrays: ArrayRecord) -> None:
        """Write model.safetensors for an app that has no checkpoints."""
        write_tensors(self.folder / "model.safetensors", tensors_of(arrays), fsync=True)

    def begin_anew(self) -> None:
        """Drop the rows of an earlier attempt, of an app that always begins with round 1; they
        are not told again."""
        self._told_round = self._rows.count()
        self._rows.clear()

    def _append(self, row: Row) -> None:
        self._rows.append(row)
        self._events.add(row["round"], _scalars(row), at_s=time.time())

    # ------------------------------------------------------------------ the end

    def finish(
        self,
        *,
        status: str,
        cause: str,
        result: RunResult | None,
        duration_s: float,
        privacy: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Write summary.json and return what is in it."""
        if self._pending is not None:
            self._make_durable(*self._pending)
            self._pending = None
        rows = self._rows.read()
        summary = {
            "status": status,
            "cause": cause or None,
            "rounds": rows[-1]["round"] if rows else 0,
            "final": _part(rows[-1]) if rows else None,
            "best": _part(result.best) if result is not None and result.best else None,
            "duration_s": round(self._spent_s + duration_s, 3),
            "privacy": privacy,
        }
        write_file(self.folder / "summary.json", json.dumps(summary, indent=1).encode() + b"\n")
        return summary


def _read(path: Path, *, size_max: int, crc32: int) -> ArrayRecord:
    return params_to_arrays(TensorFile.open(path, size_max=size_max, crc32=crc32).tensors)


def _remove(path: Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            inner.unlink()
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _part(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) for key in ("round", "train", "evaluate", "server")}


def _scalars(row: Row) -> dict[str, float]:
    return {
        f"{part}/{name}": value
        for part in ("train", "evaluate", "server")
        for name, value in (row.get(part) or {}).items()
        if isinstance(value, int | float)
    }
