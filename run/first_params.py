"""The params before the first round: in memory if they are few, in a file if they are many.

A large model is built by a process of its own, `python -m meadow.run.first_params`, which writes the
params to a file and ends: the run, which takes days, holds none of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flwr.app import ArrayRecord

from ..apps.folder import App
from ..errors import AppError
from ..flower.messages import params_to_arrays
from ..machine.process_limits import allow_many_files
from ..transport.tensors import TensorFile, write_tensors

if TYPE_CHECKING:
    import torch

    from ..task import Task

__all__ = ["LARGE_BYTES_MIN", "first_params", "main"]

LARGE_BYTES_MIN: Final = 256 << 20
"""A model with so many bytes of params is not built in the run's process."""
OUTPUT_CHARS_MAX: Final = 2000


class _TooLarge(BaseException):
    """Ends the building of a model; an app's own `except Exception` does not hear of it."""


def first_params(app: App, task: Task, seed: int, path: Path) -> ArrayRecord:
    """Return the params of a task's model, those of `initial_arrays` to the last bit.

    If they are many they are read from a file, which is made at `path`.

    Raises:
        AppError: the process that builds a large model fails, or there is no folder to load it from.
        StoreError: the disk has no room.
    """
    from .app import initial_arrays

    if app.only_here:
        return initial_arrays(task, seed)
    with suppress(_TooLarge), _bounded(LARGE_BYTES_MIN):
        return initial_arrays(task, seed)
    order = {"app": str(app.folder), "settings": app.settings, "seed": seed, "path": str(path)}
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(order),
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.stdout:
        print(done.stdout[-OUTPUT_CHARS_MAX:], end="")
    if done.returncode:
        lines = done.stdout.strip().splitlines() or ["it said nothing"]
        how = f"was killed by signal {-done.returncode}" if done.returncode < 0 else "failed"
        raise AppError(
            f"the process that builds the model before the first round {how}: {lines[-1][:500]}; it "
            "needs memory for the whole model once"
        )
    return params_to_arrays(TensorFile.open(path, size_max=path.stat().st_size).tensors)


def main() -> int:
    """Build a model, and write its params."""
    from ..training.module_params import build_module, params_of_module

    allow_many_files()
    order = json.load(sys.stdin)
    app = App.load(order["app"], overrides=order["settings"], environ={})
    module = build_module(app.load_task(), order["seed"])
    write_tensors(Path(order["path"]), params_of_module(module, copy=False), fsync=True)
    return 0


@contextmanager
def _bounded(bytes_max: int) -> Iterator[None]:
    """Raise `_TooLarge` where a module gets more bytes of params than these in this block."""
    from torch.nn.modules.module import register_module_parameter_registration_hook
    from torch.nn.parameter import UninitializedParameter

    count = 0

    def add(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        nonlocal count
        if param is not None and not isinstance(param, UninitializedParameter):
            count += param.numel() * param.element_size()
            if count > bytes_max:
                raise _TooLarge

    hook: Callable[..., None] = add
    handle = register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


if __name__ == "__main__":
    sys.exit(main())
