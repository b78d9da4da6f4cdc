"""What an experiment tracker is asked: to begin a run or go on with it, to take rounds, to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

__all__ = ["FILES", "Scalars", "Tracker"]

Scalars = tuple[int, Mapping[str, float]]
"""A round and its values: "train/loss", "evaluate/accuracy", "duration_s", "epsilon" and so on."""

FILES = ("meadow.toml", "summary.json", "report.html", "model.safetensors")
"""What of a run folder becomes artifacts, if it is there. Values of single clients (clients.jsonl)
and logs stay in the folder."""


class Tracker(Protocol):
    """A run in the store of an experiment tracker. Any method may raise what the store raises."""

    @property
    def name(self) -> str:
        """The tracker's name for people."""

    def begin(self, settings: Mapping[str, str]) -> int:
        """Begin the run with these settings, or go on with it; return the last round that the
        store has, 0 if none. Called again after an error."""

    def add(self, rounds: Sequence[Scalars]) -> None:
        """Store rounds, in ascending order and after all that were stored."""

    def end(self, status: str, files: Sequence[Path]) -> None:
        """Store files and end the run: "finished", "stopped" or "failed"."""
