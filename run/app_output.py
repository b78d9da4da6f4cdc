"""Captures what an app prints, logs and writes while its server side runs.

app.log   what the app prints and Flower logs; both still reach the terminal
files/    the working directory of a Flower app's main function, for its relative paths
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from ..errors import StoreError

__all__ = ["FILES", "LOG", "Elsewhere", "kept_output", "show_output", "taken_output", "working_in"]

LOG = "app.log"
FILES = "files"
STREAMS = ("stdout", "stderr")
LOG_BYTES_MAX = 64 << 20
TAKEN_CHARS_MAX = 1 << 20
"""Bound of the captured output of one group of clients, in characters."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
FLOWER = logging.getLogger("flwr")

Elsewhere = Callable[[], AbstractContextManager[None]]
"""Returns to the process's own working directory, for code outside the app's main function."""


class _LogFile:
    """A log file of at most `LOG_BYTES_MAX` bytes, created at the first write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._left = LOG_BYTES_MAX

    def write(self, text: str) -> None:
        if not text or self._left <= 0:
            return
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8", errors="replace", buffering=1)
            self._left -= self._file.tell()
        self._left -= len(text)
        self._file.write(COLOURS.sub("", text) if self._left > 0 else "\n(no more is kept)\n")

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Tee:
    """A text stream that also writes into a file; other attributes are the stream's."""

    def __init__(self, stream: TextIO, file: _LogFile) -> None:
        self._stream = stream
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._file.flush()
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Piece(io.StringIO):
    """A text stream that passes its text to a callback."""

    def __init__(self, take: Callable[[str], None]) -> None:
        super().__init__()
        self._take = take

    def write(self, text: str) -> int:
        self._take(text)
        return len(text)


@contextmanager
def kept_output(folder: Path, *, anew: bool) -> Iterator[None]:
    """Write this process's output and Flower's log into `folder`, until the block ends.

    `anew` deletes the output of an earlier process.

    Edge cases: output of C code and of child processes is not captured, except that of the
        executors' workers (`taken_output`).
    Raises:
        StoreError: the file cannot be written.
    """
    path = folder / LOG
    try:
        if anew:
            path.write_bytes(b"")
        with closing(_LogFile(path)) as file:
            streams = {name: _Tee(getattr(sys, name), file) for name in STREAMS}
            with _printing_to(streams):
                yield
    except OSError as error:
        if error.filename != str(path):
            raise
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def taken_output() -> Iterator[list[tuple[str, str]]]:
    """Collect this process's output and Flower's log as (stream, text), until the block ends.

    `show_output` prints it in another process. Text beyond `TAKEN_CHARS_MAX` is dropped.
    """
    taken: list[tuple[str, str]] = []
    left = TAKEN_CHARS_MAX

    def take(name: str, text: str) -> None:
        nonlocal left
        part, left = text[: max(left, 0)], left - len(text)
        if taken and taken[-1][0] == name:
            taken[-1] = (name, taken[-1][1] + part)
        elif part:
            taken.append((name, part))

    streams = {name: _Piece(partial(take, name)) for name in STREAMS}
    with _printing_to(streams):
        yield taken


def show_output(taken: Iterable[tuple[str, str]]) -> None:
    """Print the output that another process collected with `taken_output`."""
    for name, text in taken:
        getattr(sys, name if name in STREAMS else STREAMS[0]).write(text)


@contextmanager
def _printing_to(streams: Mapping[str, Any]) -> Iterator[None]:
    with ExitStack() as restored:
        for name, stream in streams.items():
            restored.callback(setattr, sys, name, getattr(sys, name))
            setattr(sys, name, stream)
        for handler in FLOWER.handlers:
            if isinstance(handler, logging.StreamHandler):
                if getattr(handler.stream, "closed", False):  # as a test's captured output is
                    handler.stream = sys.__stderr__
                before = handler.setStream(sys.stderr)
                restored.callback(handler.setStream, before or sys.__stderr__)
        yield


@contextmanager
def working_in(folder: Path) -> Iterator[Elsewhere]:
    """Make `folder` the working directory; create it, and remove it afterwards if it is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    before, inside = (os.open(path, os.O_RDONLY) for path in (".", folder))

    @contextmanager
    def elsewhere() -> Iterator[None]:
        now = os.open(".", os.O_RDONLY)  # the app may have changed its working directory
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
