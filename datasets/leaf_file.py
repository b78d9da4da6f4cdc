"""One file of LEAF: its users, and one user's samples without reading the others'.

{"users": ["a", ...], "num_samples": [3, ...], "user_data": {"a": {"x": [...], "y": [...]}, ...}}

Source: Caldas et al. 2018 (arXiv 1812.01097).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import DataError

__all__ = ["LeafFile"]

HEAD_BYTES = 1 << 20
_DATA_KEY = '"user_data"'
_DECODER = json.JSONDecoder()


class LeafFile:
    """The users of one file, and where in it each one's samples are.

    The file is scanned once, at the first access to one of its users, with one user's samples in
    memory as objects at a time. After that, a user costs one read of its own bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users, self.counts = self._index()
        self._counts = dict(zip(self.users, self.counts, strict=True))
        self._spans: dict[str, tuple[int, int]] = {}

    def samples_of(self, user: str) -> tuple[list[Any], list[Any]]:
        """Return a user's (x, y) as the file has them.

        Raises:
            DataError: the file lacks them, or contradicts its own counts.
        """
        if not self._spans:
            self._spans = self._scan()
        if user not in self._spans:
            raise DataError(f"{self.path}: user_data has no user {user!r}, whom users names")
        start, end = self._spans[user]
        with self.path.open("rb") as file:
            file.seek(start)
            content = file.read(end - start)
        try:
            data = json.loads(content)
            x, y = data["x"], data["y"]
        except (ValueError, KeyError, TypeError):
            raise self._damaged(f"user_data of {user!r} is no object with x and y") from None
        promised = self._counts[user]
        if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y) == promised):
            raise self._damaged(f"user {user!r} has not the {promised} samples of num_samples")
        return x, y

    def _index(self) -> tuple[list[str], list[int]]:
        """Read the users and their numbers of samples, which mostly stand before the data."""
        head = self._head()
        if head is None:
            try:
                head = json.loads(self._text())
            except ValueError as error:
                raise self._damaged(f"it is not JSON ({error})") from None
        try:
            users, counts = list(head["users"]), list(head["num_samples"])
        except (KeyError, TypeError):
            raise self._damaged("it has no lists users and num_samples") from None
        right = all(isinstance(each, str) for each in users)
        right &= all(type(each) is int and each >= 0 for each in counts)
        if not right or len(users) != len(counts) or len(set(users)) != len(users):
            raise self._damaged("users and num_samples must be names, each once, and their numbers")
        return users, counts

    def _head(self) -> Any:
        with self.path.open(encoding="utf-8", errors="replace") as file:
            text = ""
            for part in iter(partial(file.read, HEAD_BYTES), ""):
                text += part
                if _DATA_KEY in text:
                    break
        try:
            head = json.loads(text[: text.index(_DATA_KEY)] + _DATA_KEY + ": null}")
        except ValueError:
            return None
        return head if isinstance(head, dict) and {"users", "num_samples"} <= head.keys() else None

    def _text(self) -> str:
        # One letter a byte, so that places in the text are places in the file.
        return self.path.read_bytes().decode("latin-1")

    def _scan(self) -> dict[str, tuple[int, int]]:
        text = self._text()
        try:
            for key, start, _ in _members(text, 0, stop_at=_DATA_KEY):
                if key == _DATA_KEY:
                    return {
                        json.loads(name.encode("latin-1")): (first, end)
                        for name, first, end in _members(text, start)
                    }
        except (ValueError, IndexError) as error:
            raise self._damaged(f"it is not JSON ({error})") from None
        raise self._damaged("it has no user_data")

    def _damaged(self, what: str) -> DataError:
        return DataError(f"{self.path}: is no file of LEAF: {what}; make it anew, or remove it")


def _members(
    text: str, start: int, *, stop_at: str | None = None
) -> Iterator[tuple[str, int, int]]:
    """Yield (key as written, where its value starts, where it ends) of the object at `start`.

    The key `stop_at` is the last one; its value is not parsed.
    """
    place = _expected(text, start, "{")
    while text[place] != "}":
        end = _DECODER.raw_decode(text, place)[1]
        key, place = text[place:end], _expected(text, end, ":")
        if key == stop_at:
            yield key, place, place
            return
        end = _DECODER.raw_decode(text, place)[1]
        yield key, place, end
        place = _after_space(text, end)
        if text[place] != "}":
            place = _expected(text, place, ",")


def _expected(text: str, place: int, mark: str) -> int:
    place = _after_space(text, place)
    if text[place] != mark:
        raise ValueError(f"{mark} is missing at byte {place}")
    return _after_space(text, place + 1)


def _after_space(text: str, place: int) -> int:
    while text[place] in " \t\n\r":
        place += 1
    return place
