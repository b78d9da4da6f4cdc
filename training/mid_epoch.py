"""An unfinished round on disk: what a training process that was killed goes on from.

Every rank writes a file of its own at the same steps; a step counts once all of them are there.
Rank 0's has the params and the optimizer's slots, and so have the others' where the strategy shards
them. The files stay on the client's machine and go when the next round begins.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MeadowError
from ..transport.tensors import TensorFile, write_tensors

__all__ = ["MidEpoch", "Moment", "forget_others", "saves_folder"]

SIZE_BYTES_MAX = 1 << 40
STEPS_KEPT = 2
_FILE = re.compile(r"(\d{12})-(\d+)\.safetensors")


@dataclass(frozen=True, slots=True)
class Moment:
    """What was saved: arrays by name, and the rest as JSON holds it."""

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MidEpoch:
    """The saves of one round's training.

    Attributes:
        folder: where they are; of this round and these settings alone.
        every_steps: how often the trainer saves.
        ranks: how many processes train together.
    """

    folder: Path
    every_steps: int
    ranks: int = 1

    def latest(self) -> int:
        """Return the latest step that all ranks have saved, -1 if there is none."""
        ranks_at: dict[int, set[int]] = {}
        for step, rank, path in self._files():
            with contextlib.suppress(MeadowError):
                TensorFile.open(path, size_max=SIZE_BYTES_MAX)
                ranks_at.setdefault(step, set()).add(rank)
        whole = [step for step, ranks in ranks_at.items() if ranks == set(range(self.ranks))]
        return max(whole, default=-1)

    def write(self, step: int, rank: int, moment: Moment) -> None:
        """Write a save; the rank's outdated ones are removed.

        Raises:
            StoreError: the disk does not take it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        metadata = {"facts": json.dumps(dict(moment.facts))}
        # No fsync: a process that is killed loses nothing that it wrote.
        write_tensors(self._path(step, rank), moment.arrays, fsync=False, metadata=metadata)
        mine = sorted(path for _, owner, path in self._files() if owner == rank)
        for path in mine[:-STEPS_KEPT]:
            path.unlink(missing_ok=True)

    def read(self, step: int, rank: int) -> Moment | None:
        """Return what a rank saved at a step, None if it cannot be read."""
        try:
            file = TensorFile.open(self._path(step, rank), size_max=SIZE_BYTES_MAX)
            arrays = {name: np.array(tensor.numpy()) for name, tensor in file.tensors.items()}
            return Moment(arrays, json.loads(file.metadata["facts"]))
        except (MeadowError, OSError, ValueError, KeyError):
            return None

    def _path(self, step: int, rank: int) -> Path:
        return self.folder / f"{step:012d}-{rank}.safetensors"

    def _files(self) -> list[tuple[int, int, Path]]:
        found = []
        with contextlib.suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                if match := _FILE.fullmatch(path.name):
                    found.append((int(match[1]), int(match[2]), path))
        return found


def saves_folder(root: Path, *parts: object) -> Path:
    """Return the folder under `root` for a round that all of `parts` name."""
    return root / sha256(repr(parts).encode()).hexdigest()[:32]


def forget_others(folder: Path) -> None:
    """Remove the saves of every other round."""
    with contextlib.suppress(FileNotFoundError):
        for other in folder.parent.iterdir():
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
