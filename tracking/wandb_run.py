"""A run in Weights & Biases, offline by default: `wandb sync` uploads its folder later."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .identity import read_id, write_id
from .packages import needed
from .tracker import Scalars

__all__ = ["WandbRun"]

EXIT_CODES = {"finished": 0, "stopped": 255, "failed": 1}
"""255 is what Weights & Biases calls a killed run."""
LAST = "last-round"


class WandbRun:
    """A run of a project; its files lie in wandb/ below the run folder.

    Only what the tracker is given is stored: neither code, nor the git state, nor the console, nor
    measurements of the machine.
    """

    name = "Weights & Biases"

    def __init__(self, folder: Path, *, mode: str, project: str) -> None:
        self._folder, self._mode, self._project = folder, mode, project
        self._run: Any = None

    def begin(self, settings: Mapping[str, str]) -> int:
        """Begin the run, or go on with it under its id."""
        wandb = needed("wandb", self.name)
        key = f"wandb {self._mode}"
        ident = read_id(self._folder, key) or secrets.token_hex(8)
        write_id(self._folder, key, ident)
        self._run = wandb.init(
            project=self._project,
            name=self._folder.name,
            id=ident,
            resume="allow",
            mode=self._mode,
            dir=str(self._folder),
            config=dict(settings),
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                save_code=False,
                silent=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        return int(read_id(self._folder, f"{key} {LAST}") or 0)

    def add(self, rounds: Sequence[Scalars]) -> None:
        """Store rounds; a step is a round."""
        for number, values in rounds:
            self._run.log(dict(values), step=number)
        write_id(self._folder, f"wandb {self._mode} {LAST}", str(rounds[-1][0]))

    def end(self, status: str, files: Sequence[Path]) -> None:
        """Store files and end the run."""
        for file in files:
            self._run.save(str(file), base_path=str(file.parent), policy="now")
        self._run.finish(exit_code=EXIT_CODES[status])
