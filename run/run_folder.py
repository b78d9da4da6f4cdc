"""The run folder: the results of a run, simulated or real, and its state for a resume.

    meadow.toml        the resolved configuration
    metrics.jsonl      one JSON object per round
    clients.jsonl      likewise, with the values of single clients
    model.safetensors  the params of the last committed round
    checkpoints/       the last two rounds: per round, a manifest and the files that it names
    tensorboard/       the metrics as TensorBoard events
    summary.json       how the run ended
    tracking.json      under which ids experiment trackers know it, if it is tracked
app.log            what the app printed
tracebacks.log     errors of the app's code in this process, or in simulated clients

A plain Flower app has no checkpoints. It may also leave

    answers.jsonl      clients' answers to queries, and text that they reported
    result.json        arrays of text from its strategy
    files/             the files that it wrote

Where rounds can be repeated, as in a simulation, a run may make only some of them durable: it
resumes from the last durable one.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord

from ..errors import StoreError
from ..flower.messages import FlatTensor, params_to_arrays
from ..strategies.rounds.adapter import RunResult
from ..strategies.rounds.recorder import Checkpoint, RoundTable, Row
from ..tracking.follower import RunFollower
from ..tracking.tracker import Tracker
from ..transport.durable import sweep, write_file
from ..transport.tensors import write_tensors
from .checkpoints import Checkpoints
from .failed_clients import About, FailedClients, causes_in
from .round_lines import RoundLines
from .tensorboard import EventFile

__all__ = ["TRACEBACKS", "RunFolder"]

TRACEBACKS = "tracebacks.log"
TRACEBACK_CHARS_MAX = 8000
TRACEBACKS_BYTES_MAX = 4 << 20
PARTS = ("train", "evaluate", "server", "query")
"""The parts of a row; only plain Flower apps send queries."""


class RunFolder:
    """A run's folder; a `Recorder` for the strategy."""

    def __init__(
        self,
        folder: Path,
        *,
        config_toml: str,
        on_event: Callable[[str, Mapping[str, Any]], None],
        pause_s: float = 0.0,
        about: About = lambda client: {},
    ) -> None:
        """Open the folder of a new or interrupted run.

        `about` returns the details that are emitted with each event of a client: the name of its
        "site", and the "log" with its app's output and errors.

        Units: `pause_s` is the minimum time between two durable rounds, in seconds; the last round
            is always made durable. 0 makes every round durable before the next begins.

        Raises:
            StoreError: the folder cannot be written.
        """
        self.folder = folder
        self._on_event = on_event
        self._about = about
        self._failed = FailedClients()
        self._emitted_round = 0
        self._pause_s = pause_s
        self._durable_at_s = -math.inf
        self._pending: tuple[Checkpoint, Row] | None = None
        self._follower: RunFollower | None = None
        self._rows = RoundLines(folder / "metrics.jsonl")
        self._tables = RoundLines(folder / "clients.jsonl")
        self._answers = RoundLines(folder / "answers.jsonl")
        self._spent_s = 0.0
        """Duration of the rounds before this process resumed the run."""
        try:
            self.checkpoints = Checkpoints(folder / "checkpoints")
            sweep(folder)
            write_file(folder / "meadow.toml", config_toml.encode())
            (folder / "summary.json").unlink(missing_ok=True)
            self._events = EventFile(folder / "tensorboard", created_at_s=time.time())
        except OSError as error:
            raise StoreError(f"{folder} cannot be written: {error.strerror}") from error

    @property
    def durable(self) -> bool:
        """Whether every round is durable before the next begins."""
        return self._pause_s == 0

    def follow(self, trackers: Sequence[Tracker]) -> None:
        """Copy the rounds from now on, and those that are missing there, to experiment trackers."""
        if trackers:
            self._follower = RunFollower(self.folder, trackers, on_event=self._on_event)

    # ------------------------------------------------------------------ what the strategy asks

    def event(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Emit an event, with its client's site and log."""
        if isinstance(client := detail.get("client"), int):
            detail = self._failed.take(kind, {**detail, **self._about(client)})
            if 0 < detail.get("round", 0) <= self._emitted_round:
                return  # emitted by an earlier worker
        self._on_event(kind, detail)

    def traceback(self, text: str, client: int | None = None) -> None:
        """Append an error of an app's code, on a client or on the server, unless the file is full.

        Raises:
            StoreError: the file cannot be written.
        """
        who = (
            "the server" if client is None else self._about(client).get("site", f"client {client}")
        )
        path = self.folder / TRACEBACKS
        try:
            with path.open("a", encoding="utf-8", errors="replace") as file:
                if file.tell() < TRACEBACKS_BYTES_MAX:
                    file.write(f"{who}:\n{text[-TRACEBACK_CHARS_MAX:].rstrip()}\n\n")
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        source = {} if client is None else {"client": client}
        self._on_event("traceback", {**source, "text": text[-TRACEBACK_CHARS_MAX:]})

    def commit(self, checkpoint: Checkpoint, row: Row, table: RoundTable) -> ArrayRecord:
        """Record a round, and make it durable if `pause_s` has passed; return its params.

        Raises:
            StoreError: the disk is full or fails; the round before is intact.
        """
        row = self._failed.added_to(row)
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
        params_file, arrays = self.checkpoints.save(checkpoint, row)
        self._publish(params_file)
        self.checkpoints.drop_old()
        self._durable_at_s = time.monotonic()
        return arrays

    def resume(self) -> Checkpoint | None:
        """Return the newest intact checkpoint; a damaged one is reported and skipped.

        Raises:
            StoreError: all checkpoints are damaged.
        """
        saved = self.checkpoints.newest(self.event)
        if saved is None:
            self._rows.repair(0)
            self._tables.repair(0)
            return None
        self._publish(saved.params_file)
        history = self._rows.repair(saved.state.round, saved.row)
        self._tables.repair(saved.state.round)
        self._spent_s = sum(row.get("duration_s") or 0.0 for row in history)
        return Checkpoint(
            state=saved.state, best=saved.best, stale_rounds=saved.stale_rounds, history=history
        )

    # ------------------------------------------------------------------ parts of it

    def _publish(self, params_path: Path) -> None:
        """Hard-link model.safetensors to the params' file."""
        target = self.folder / "model.safetensors"
        link = self.folder / ".model.safetensors.tmp"
        try:
            link.unlink(missing_ok=True)
            os.link(params_path, link)
            os.replace(link, target)
            link.unlink(missing_ok=True)  # POSIX: renaming onto the same file leaves both names
        except OSError as error:
            raise StoreError(f"{target} cannot be written: {error.strerror}") from error

    # ------------------------------------------------------------------ metrics

    def append_row(self, row: Row) -> None:
        """Record a round of an app that has no checkpoints (a plain Flower app)."""
        row = self._failed.added_to(row)
        self._append(row)
        if row["round"] > self._emitted_round:
            self.event("round_committed", row)

    def append_answer(self, answer: Mapping[str, Any]) -> None:
        """Record a client's answer (text, numbers, lists) in an app without checkpoints."""
        self._answers.append(json.loads(json.dumps(answer, default=str)))

    def save_result(self, tensors: Mapping[str, FlatTensor], others: Mapping[str, Any]) -> None:
        """Write an app's model.safetensors, and result.json for arrays of text."""
        if tensors:
            write_tensors(self.folder / "model.safetensors", tensors, fsync=True)
        if others:
            text = json.dumps(others, indent=1, default=str)
            write_file(self.folder / "result.json", text.encode() + b"\n")

    def begin_anew(self) -> None:
        """Drop the rows of an earlier attempt, as an app without checkpoints begins with round 1.

        Their events are not emitted again.
        """
        self._emitted_round = self._rows.count()
        self._rows.clear()
        self._answers.clear()

    def _append(self, row: Row) -> None:
        self._rows.append(row)
        try:
            self._events.add(row["round"], _scalars(row), at_s=time.time())
        except OSError as error:
            folder = self.folder / "tensorboard"
            raise StoreError(f"{folder} cannot be written: {error.strerror}") from error
        if self._follower is not None:
            self._follower.row_added()

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
        """Write summary.json and return its content."""
        if self._pending is not None:
            self._make_durable(*self._pending)
            self._pending = None
        self.checkpoints.clean()
        rows = self._rows.read()
        summary = {
            "status": status,
            "cause": cause or None,
            "rounds": rows[-1]["round"] if rows else 0,
            "final": _part(rows[-1]) if rows else None,
            "best": _part(result.best) if result is not None and result.best else None,
            "duration_s": round(self._spent_s + duration_s, 3),
            "privacy": privacy,
            "failures": causes_in(rows, self._failed.left()),
        }
        write_file(self.folder / "summary.json", json.dumps(summary, indent=1).encode() + b"\n")
        if self._follower is not None:
            self._follower.end(status)
        return summary


def _part(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) for key in ("round", *PARTS) if key in row or key != "query"}


def _scalars(row: Row) -> dict[str, float]:
    return {
        f"{part}/{name}": value
        for part in PARTS
        for name, value in (row.get(part) or {}).items()
        if isinstance(value, int | float)
    }
