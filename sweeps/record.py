"""sweep.json: what a sweep is of and what it found; and the lock on its folder."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import StoreError
from ..transport.durable import write_file
from .combinations import Combination
from .outcome import Group
from .plan import LOCK_NAME, RECORD_NAME, RunProgress, Sweep

__all__ = ["hold_folder", "record_of", "write_record"]


def record_of(
    sweep: Sweep,
    runs: Sequence[tuple[Combination, RunProgress]],
    groups: Sequence[Group],
    *,
    metric: str | None,
    best: Group | None,
) -> dict[str, Any]:
    """Return what is in sweep.json; metrics are those of the final rounds."""
    return {
        "app": str(sweep.app.folder),
        "sha256": sweep.app.sha256,
        "fixed": dict(sweep.grid.fixed),
        "varied": {key: list(values) for key, values in sweep.grid.varied.items()},
        "metric": metric,
        "best": asdict(best) if best else None,
        "groups": [asdict(group) for group in groups],
        "runs": [
            {"run": combination.name, "settings": dict(combination.values), **asdict(state)}
            for combination, state in runs
        ],
    }


def write_record(out: Path, record: dict[str, Any]) -> None:
    """Write sweep.json.

    Raises:
        StoreError: the folder cannot be written.
    """
    write_file(out / RECORD_NAME, json.dumps(record, indent=1).encode() + b"\n")


@contextmanager
def hold_folder(out: Path) -> Iterator[int]:
    """Be the only sweep in a folder; yields the lock's descriptor, for the children to hold too.

    Raises:
        StoreError: another sweep is in it, or runs of one that was killed; or it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        fd = os.open(out / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"{out} cannot be written: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{out}: another sweep is running in it, or runs of one that was killed; wait "
                "for them to end"
            ) from None
        yield fd
    finally:
        os.close(fd)
