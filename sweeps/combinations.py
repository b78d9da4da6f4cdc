"""Which runs a sweep has: every combination of the values that `--set` lists for each key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ..errors import ConfigError

__all__ = ["COMBINATIONS_MAX", "Combination", "Grid", "grid_of", "split_values"]

COMBINATIONS_MAX = 10_000
NAME_LENGTH_MAX = 150
"""Of a run's folder; file systems take 255 bytes."""
_CLOSING = {"[": "]", "{": "}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One run of a sweep: its name, and the values that it has of the varied keys."""

    name: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """All runs of a sweep.

    Attributes:
        fixed: the keys with one value, the same in all runs.
        varied: the keys with several, in the order in which they were given.
        combinations: their product; the last key changes fastest.
    """

    fixed: Mapping[str, str]
    varied: Mapping[str, tuple[str, ...]]
    combinations: tuple[Combination, ...]

    def overrides(self, combination: Combination) -> tuple[str, ...]:
        """Return a run's settings as "key=value", by key: the order of `--set` is no matter."""
        settings = {**self.fixed, **combination.values}
        return tuple(f"{key}={settings[key]}" for key in sorted(settings))


def grid_of(settings: Sequence[str]) -> Grid:
    """Return the grid of options such as "run.seed=1,2,3".

    Raises:
        ConfigError: an option has no value, a value is there twice or is cut, a key is there
            twice, or there are more than `COMBINATIONS_MAX` combinations.
    """
    fixed: dict[str, str] = {}
    varied: dict[str, tuple[str, ...]] = {}
    for option in settings:
        key, values = _values_of(option)
        if key in fixed or key in varied:
            raise ConfigError(f"--set {key}: is there twice; give all its values at once")
        if len(values) == 1:
            fixed[key] = values[0]
        else:
            varied[key] = values
    count = prod(len(values) for values in varied.values())
    if count > COMBINATIONS_MAX:
        raise ConfigError(
            f"a sweep has at most {COMBINATIONS_MAX} combinations, these are {count}; give fewer "
            "values, or several sweeps"
        )
    return Grid(fixed=fixed, varied=varied, combinations=_combine(varied))


def _values_of(option: str) -> tuple[str, tuple[str, ...]]:
    key, equals, text = (part.strip() for part in option.partition("="))
    where = f"--set {option[:100]}"
    if not key or not equals or not text:
        raise ConfigError(f"{where}: has no value; write --set key=value,value")
    try:
        values = tuple(_plain(value) for value in split_values(text))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise ConfigError(f"{where}: has {twice[:40]!r} twice; leave one out")
    return key, values


def split_values(text: str) -> list[str]:
    """Split at the commas that are not inside of quotes or brackets, as TOML has them.

    Raises:
        ValueError: a value is empty, or a quote or bracket is not closed.
    """
    values: list[str] = []
    awaited: list[str] = []
    start = place = 0
    while place < len(text):
        mark = text[place]
        inside = awaited[-1] if awaited else ""
        if inside in ("'", '"'):
            if mark == "\\" and inside == '"':
                place += 1
            elif mark == inside:
                awaited.pop()
        elif mark in ("'", '"'):
            awaited.append(mark)
        elif mark in _CLOSING:
            awaited.append(_CLOSING[mark])
        elif mark == inside:
            awaited.pop()
        elif mark == "," and not awaited:
            values.append(text[start:place].strip())
            start = place + 1
        place += 1
    values.append(text[start:].strip())
    if awaited:
        raise ValueError(f"{awaited[-1]} is missing; put text with a quote or bracket in quotes")
    if not all(values):
        raise ValueError("a value is empty; write key=value,value without a comma at the end")
    return values


def _plain(value: str) -> str:
    """Return a quoted text without its quotes, as `meadow simulate --set` takes it."""
    if value[0] not in ("'", '"'):
        return value
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except ValueError as error:
        raise ValueError(f"{value[:40]} is no TOML: {error}") from None
    if not isinstance(parsed, str) or not parsed:
        raise ValueError(f"{value[:40]} is an empty text")
    return parsed


# ---------------------------------------------------------------- names


def _combine(varied: Mapping[str, tuple[str, ...]]) -> tuple[Combination, ...]:
    short = _short_keys(list(varied))
    made: dict[str, Combination] = {}
    for number, values in enumerate(product(*varied.values()), start=1):
        chosen = dict(zip(varied, values, strict=True))
        said = ",".join(f"{short[key]}={_safe(value)}" for key, value in chosen.items())
        name = said or "run"
        if len(name) > NAME_LENGTH_MAX or name in made:
            name = f"{name[: NAME_LENGTH_MAX - 8]}~{number}"
        made[name] = Combination(name=name, values=chosen)
    return tuple(made.values())


def _short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return the last parts of the keys where they tell the keys apart, else the whole keys."""
    leaves = [key.rpartition(".")[2] for key in keys]
    return {
        key: _safe(leaf if leaves.count(leaf) == 1 else key)
        for key, leaf in zip(keys, leaves, strict=True)
    }


def _safe(text: str) -> str:
    """Return text that can be part of a file's name anywhere, and of a shell's word."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-") or "-"
