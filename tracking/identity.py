"""tracking.json in a run folder: under which ids its trackers know the run."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from ..errors import ConfigError
from ..transport.durable import write_file

__all__ = ["read_id", "write_id"]

FILE = "tracking.json"
BYTES_MAX = 1 << 16
_LOCK = threading.Lock()
"""Each tracker has a thread."""


def read_id(folder: Path, tracker: str) -> str | None:
    """Return the id of the folder's run at a tracker (and its store), None if it has none.

    Raises:
        ConfigError: the file is damaged.
    """
    return _read(folder).get(tracker)


def write_id(folder: Path, tracker: str, ident: str) -> None:
    """Keep the id of the folder's run at a tracker."""
    with _LOCK:
        text = json.dumps(_read(folder) | {tracker: ident}, indent=1)
        write_file(folder / FILE, text.encode() + b"\n")


def _read(folder: Path) -> dict[str, str]:
    path = folder / FILE
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(BYTES_MAX))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ConfigError(f"{path} is damaged; remove it, and the run is tracked as a new one")
    return found
