"""What a plain Flower app prints, logs and writes while its server side runs: kept in its folder.

app.log   what it prints and what Flower logs, which still go where they did
files/    the folder in which its main function works, so that relative paths lie there
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from ..errors import StoreError

__all__ = ["FILES", "LOG", "Elsewhere", "kept_output", "working_in"]

LOG = "app.log"
FILES = "files"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
FLOWER = logging.getLogger("flwr")

Elsewhere = Callable[[], AbstractContextManager[None]]
"""Back in the folder in which the process was, for what is not the app's main function."""


class _Tee:
    """A text stream that writes into a file too; everything else is the stream's own."""

    def __init__(self, stream: TextIO, file: TextIO) -> None:
        self._stream = stream
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(COLOURS.sub("", text))
        return self._stream.write(text)

    def flush(self) -> None:
        self._file.flush()
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def kept_output(folder: Path) -> Iterator[None]:
    """Keep in `folder` what this process prints, and what Flower logs, meanwhile.

    Edge cases: what processes of their own print, and C code, is not seen.
    Raises:
        StoreError: the file cannot be written.
    """
    try:
        file = (folder / LOG).open("w", encoding="utf-8", errors="replace", buffering=1)
    except OSError as error:
        raise StoreError(f"{folder / LOG} cannot be written: {error.strerror}") from error
    with ExitStack() as restored:
        restored.enter_context(file)
        for name in ("stdout", "stderr"):
            plain = getattr(sys, name)
            restored.callback(setattr, sys, name, plain)
            setattr(sys, name, _Tee(plain, file))
        for handler in FLOWER.handlers:
            if isinstance(handler, logging.StreamHandler):
                before = handler.setStream(sys.stderr)
                restored.callback(handler.setStream, before or sys.__stderr__)
        yield


@contextmanager
def working_in(folder: Path) -> Iterator[Elsewhere]:
    """Let this process work in `folder`, which is made; an empty one is removed afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    before, inside = (os.open(path, os.O_RDONLY) for path in (".", folder))

    @contextmanager
    def elsewhere() -> Iterator[None]:
        now = os.open(".", os.O_RDONLY)  # the app may have gone on to another one
        try:
            os.fchdir(before)
            yield
        finally:
            os.fchdir(now)
            os.close(now)

    try:
        os.fchdir(inside)
        yield elsewhere
    finally:
        os.fchdir(before)
        os.close(before)
        os.close(inside)
        if not any(folder.iterdir()):
            folder.rmdir()
