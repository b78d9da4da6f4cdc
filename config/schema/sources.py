"""Where settings come from: a TOML file, environment variables, `--set` options.

Each reader checks keys against the schema and says what it found as `Settings`; values are
checked later, by `settings.build`, when all sources are laid over each other.
"""

from __future__ import annotations

import reprlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ...deprecated import warn_renamed
from ...errors import ConfigError
from .settings import (
    Given,
    Settings,
    hints_of,
    refuse,
    renamed_settings,
    section_of,
    settings_of,
)

__all__ = [
    "FILE_BYTES_MAX",
    "given_by_environment",
    "given_by_overrides",
    "given_by_table",
    "read_toml",
]

FILE_BYTES_MAX = 1 << 20


def read_toml(path: Path, *, remedy: str) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        ConfigError: the file is missing (the text ends with `remedy`), unreadable, larger than
            `FILE_BYTES_MAX`, or not TOML.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; {remedy}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: is larger than {FILE_BYTES_MAX} bytes; is it the right file?")
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error.reason}; save it as UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply; settings are one or two levels") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None


def given_by_table(schema: type[Any], table: Mapping[str, Any], where: str) -> Settings:
    """Return what the tables of a file say, refusing keys that `schema` does not have."""
    return dict(_walk(schema, schema, table, where, ""))


def _walk(
    root: type[Any], section: type[Any], table: Mapping[str, Any], where: str, prefix: str
) -> Iterator[tuple[str, Given]]:
    hints = hints_of(section)
    known = {entry.name for entry in fields(section) if entry.init and _is_key(entry, hints)}
    renamed = renamed_settings(section)
    for name, value in table.items():
        key = f"{prefix}{name}"
        if name in renamed:
            new = renamed[name]
            if new in table:
                refuse(
                    where, key, f"is the old name of {prefix}{new}, which is there too; remove it"
                )
            warn_renamed(where, key, f"{prefix}{new}")
            name, key = new, f"{prefix}{new}"
        if name not in known:
            refuse(where, key, _unknown(root, key))
        inner = section_of(hints[name])
        if inner is None:
            yield key, Given(value, where)
        elif isinstance(value, Mapping):
            yield key, Given(None, where)
            yield from _walk(root, inner, value, where, f"{key}.")
        else:
            hint = f"; did you mean {alike[0]}?" if (alike := _named_alike(root, key)) else ""
            refuse(where, key, f"must be a table, [{key}], got {reprlib.repr(value)}{hint}")


def _is_key(entry: Field[Any], hints: Mapping[str, Any]) -> bool:
    return "rule" in entry.metadata or section_of(hints[entry.name]) is not None


def _named_alike(root: type[Any], key: str) -> list[str]:
    """Return the settings whose last part is that of a key, or has its initials."""
    leaf = key.rpartition(".")[2].replace("-", "_")
    names = {name: name.rpartition(".")[2] for name, *_ in settings_of(root)}
    same = [name for name, last in names.items() if last == leaf]
    level = key.rpartition(".")[0]
    return same or [
        name
        for name, last in names.items()
        if level in ("", name.rpartition(".")[0]) and _initials(last) == leaf.lower()
    ]


def _initials(name: str) -> str:
    """Return what people write for a name of several words: lr for learning_rate."""
    words = name.split("_")
    return "".join(word[0] for word in words if word) if len(words) > 1 else ""


def _unknown(root: type[Any], key: str) -> str:
    known = [name for name, *_ in settings_of(root)]
    levels = sorted({name.rpartition(".")[0] for name in known} - {""})
    level = key.rpartition(".")[0]
    alike = _named_alike(root, key) or get_close_matches(key, known, n=1, cutoff=0.7)
    if not alike and not level:
        alike = get_close_matches(key, levels, n=1)
    if alike:
        return f"is not a known key; did you mean {alike[0]}?"
    beside = [name for name in known if name.rpartition(".")[0] == level]
    return f"is not a known key; known are {', '.join(beside or levels)}"


def given_by_environment(
    schema: type[Any], environ: Mapping[str, str], prefix: str = "MEADOW_"
) -> Settings:
    """Return what variables such as MEADOW_RUN__ROUNDS=5 say; empty ones say nothing.

    Variables with the prefix but without a double underscore are somebody else's, unless they
    would be a setting with one.
    """
    renamed = renamed_settings(schema)
    keys = [*renamed, *(name for name, *_ in settings_of(schema))]
    names = {key.upper().replace(".", "__"): key for key in keys}
    slips = {name.replace("__", "_"): name for name in names}
    given: Settings = {}
    for variable in sorted(environ):
        name = variable.removeprefix(prefix)
        if name == variable or not environ[variable]:
            continue
        if name in names:
            key = names[name]
            if key in renamed:
                warn_renamed(variable, key, renamed[key])
            given[renamed.get(key, key)] = Given(environ[variable], variable, textual=True)
        elif name in slips:
            right = f"{prefix}{slips[name]}"
            raise ConfigError(f"{variable}: is not a setting; write {right} (two underscores)")
        elif "__" in name:
            key = name.replace("__", ".").lower()
            refuse(variable, key, _unknown(schema, key))
    return given


def given_by_overrides(schema: type[Any], overrides: Sequence[str]) -> Settings:
    """Return what `--set key=value` options say, the later over the earlier."""
    known, renamed = {name for name, *_ in settings_of(schema)}, renamed_settings(schema)
    given: Settings = {}
    for override in overrides:
        key, equals, text = (part.strip() for part in override.partition("="))
        where = f"--set {override}" if len(override) <= 100 else f"--set {override[:100]}..."
        if not equals or not text:
            raise ConfigError(f"{where}: has no value; write --set key=value")
        if key in renamed:
            warn_renamed("--set", key, renamed[key])
            key = renamed[key]
        if key not in known:
            refuse(where, key, _unknown(schema, key))
        given[key] = Given(text, where, textual=True)
    return given
