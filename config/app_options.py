"""Free keys: what an app's own functions take as keyword arguments.

[app]
task = "task:make_task"
layers = [64, 32]         # make_task(layers=[64, 32])

[strategy]
name = "moon:moon"
mu = 1.0                  # moon(mu=1.0)
"""

from __future__ import annotations

import inspect
import json
import reprlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_type_hints

from ..errors import AppError, ConfigError, ProtocolError
from ..task import Task
from .schema.settings import refuse

__all__ = ["OPTIONS_KEY", "make_task", "options_from_text", "options_to_text", "split_options"]

OPTIONS_KEY = "app-options"
"""Of the run config that real sites get: the options as JSON."""
OPTIONS_CHARS_MAX = 20_000
Options = Mapping[str, Any]


def split_options(
    values: Mapping[str, Any],
    overrides: Sequence[str],
    *,
    section: str,
    known: Sequence[str],
    where: str,
) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """Return the values and overrides without what is free in a section, and that as one mapping.

    Raises:
        ConfigError: a value is none that JSON can hold, or they are too large together.
    """
    table = values.get(section)
    rest, options = dict(values), {}
    if isinstance(table, Mapping):
        options = {key: value for key, value in table.items() if key not in known}
        rest[section] = {key: value for key, value in table.items() if key in known}
    others: list[str] = []
    for override in overrides:
        key, equals, text = (part.strip() for part in override.partition("="))
        names = key.split(".")
        if names[0] != section or len(names) < 2 or names[1] in known or not equals or not text:
            others.append(override)
        else:
            source = f"--set {override[:100]}"
            options = _laid_over(options, names[1:], _value(text), source, section)
    options_to_text(options, where, section)
    return rest, others, options


def _laid_over(
    options: Options, names: Sequence[str], value: Any, where: str, section: str
) -> dict[str, Any]:
    name, *inner = names
    if not inner:
        return {**options, name: value}
    below = options.get(name, {})
    if not isinstance(below, Mapping):
        raise ConfigError(f"{where}: {section}.{name} is no table, it is {reprlib.repr(below)}")
    return {**options, name: _laid_over(below, inner, value, where, section)}


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def options_to_text(options: Options, where: str, section: str = "app") -> str:
    """Return options as JSON.

    Raises:
        ConfigError: one is a date or a time, or they are larger than `OPTIONS_CHARS_MAX`.
    """
    for name, value in options.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            refuse(
                where,
                f"{section}.{name}",
                "must be made of finite numbers, text, bools, lists and tables, got "
                f"{reprlib.repr(value)}",
            )
    text = json.dumps(options, sort_keys=True)
    if len(text) > OPTIONS_CHARS_MAX:
        raise ConfigError(
            f"{where}: the free keys under [{section}] are {len(text)} characters of JSON, more than "
            f"{OPTIONS_CHARS_MAX}; keep tables of values in a file of the app"
        )
    return text


def options_from_text(text: object) -> dict[str, Any]:
    """Return what `options_to_text` made.

    Raises:
        ProtocolError: it is something else.
    """
    if not isinstance(text, str) or len(text) > OPTIONS_CHARS_MAX:
        raise ProtocolError(f"{OPTIONS_KEY} must be at most {OPTIONS_CHARS_MAX} characters of text")
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{OPTIONS_KEY} is not JSON: {error}") from None
    if not isinstance(options, dict):
        raise ProtocolError(f"{OPTIONS_KEY} must be a table, got a {type(options).__name__}")
    return options


def make_task(found: object, options: Options, *, reference: str, where: str) -> Task:
    """Return the task that `app.task` names, or that the function which it names makes.

    Raises:
        AppError: it is no task, or the function makes none.
        ConfigError: the options are not what the function takes.
    """
    if isinstance(found, Task):
        for name in options:
            refuse(
                where,
                f"app.{name}",
                f"is not a known key: {reference} is a Task; name a function of keyword arguments "
                "that makes one",
            )
        return found
    if not callable(found) or isinstance(found, type):
        raise AppError(
            f"app.task {reference!r} is a {type(found).__name__}, not a meadow.Task nor a function "
            "that makes one"
        )
    _check(found, options, where)
    made = found(**options)
    if not isinstance(made, Task):
        raise AppError(f"app.task {reference!r} made a {type(made).__name__}, not a meadow.Task")
    return made


def _check(make: Callable[..., Any], options: Options, where: str) -> None:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(make).parameters
    names = [name for name, each in parameters.items() if each.kind in by_name]
    anything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    try:
        kinds = get_type_hints(make)
    except (NameError, TypeError):  # annotations for a type checker alone
        kinds = {}
    for name, value in options.items():
        if name not in names and not anything:
            close = get_close_matches(name, names, n=1)
            hint = f"did you mean app.{close[0]}?" if close else f"it takes {_listed(names)}"
            refuse(where, f"app.{name}", f"is not a keyword of {make.__name__}(); {hint}")
        wanted = kinds.get(name)
        if wanted in (bool, int, float, str) and not _is_a(value, wanted):
            refuse(
                where,
                f"app.{name}",
                f"must be of type {wanted.__name__}, got {reprlib.repr(value)}",
            )
    for name in names:
        if name not in options and parameters[name].default is inspect.Parameter.empty:
            refuse(where, f"app.{name}", f"is missing: {make.__name__}() needs it")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _is_a(value: object, kind: type) -> bool:
    return type(value) is kind or (kind is float and type(value) is int)
