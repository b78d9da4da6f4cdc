"""Plain Flower apps: reads `[tool.flwr.app]` of a pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..config.schema.sources import read_toml
from ..errors import ConfigError

__all__ = ["FlowerApp", "Scalar", "read_flower_app", "read_node_config"]

Scalar = bool | int | float | str
PAIR = re.compile(r"""([^\s=]+)=("[^"]*"|'[^']*'|\S+)""")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerApp:
    """A Flower app's components, as "module:name", and its run config, flattened by dots."""

    name: str
    server_app: str
    client_app: str
    run_config: Mapping[str, Scalar]
    supernodes: int | None = None
    """The number of simulated clients of its federation, if it is configured."""


def read_flower_app(path: Path, *, overrides: Sequence[str] = ()) -> FlowerApp:
    """Read a Flower app's pyproject.toml and apply "key=value" overrides to its config.

    Raises:
        ConfigError: a table or key is missing, a value is no plain one, or an override names a
            key that the app does not have.
    """
    table = read_toml(path, remedy="an app is a folder with one")
    section = _table(_table(_table(table, "tool"), "flwr"), "app")
    if not section:
        raise ConfigError(f"{path}: has no [tool.flwr.app]; is it a Flower app?")
    components = _table(section, "components")
    references = {}
    for key in ("serverapp", "clientapp"):
        reference = components.get(key)
        if not isinstance(reference, str) or reference.count(":") != 1:
            raise ConfigError(
                f'{path}: tool.flwr.app.components.{key} must be "module:name", got {reference!r}'
            )
        references[key] = reference
    config = dict(_flatten(_table(section, "config"), path))
    for override in overrides:
        key, value = _override(override, config)
        config[key] = value
    name = str(_table(table, "project").get("name") or path.parent.name)
    return FlowerApp(
        name=name,
        server_app=references["serverapp"],
        client_app=references["clientapp"],
        run_config=config,
        supernodes=_supernodes(_table(_table(_table(table, "tool"), "flwr"), "federations"), path),
    )


def _supernodes(federations: Mapping[str, Any], path: Path) -> int | None:
    """Return `options.num-supernodes` of the default federation, or of the only one."""
    names = [name for name, inner in federations.items() if isinstance(inner, Mapping)]
    name = federations.get("default", names[0] if len(names) == 1 else None)
    count = _table(_table(federations, str(name)), "options").get("num-supernodes")
    if count is not None and (type(count) is not int or count < 1):
        raise ConfigError(
            f"{path}: tool.flwr.federations.{name}.options.num-supernodes must be a whole number "
            f"of at least 1, got {count!r}"
        )
    return count


def read_node_config(texts: Sequence[str]) -> dict[str, Scalar]:
    """Read 'key=value key2="a text"', as Flower's own --node-config takes it.

    Raises:
        ConfigError: the text is malformed, or a value is not a bool, int, float or text.
    """
    found: dict[str, Scalar] = {}
    for text in texts:
        pairs = PAIR.findall(text)
        if not pairs or PAIR.sub("", text).strip():
            raise ConfigError(f"--node-config {text}: must be key=value, or several with spaces")
        for key, said in pairs:
            value = _value(said)
            if not isinstance(value, Scalar):
                raise ConfigError(
                    f"--node-config {key}: must be a bool, int, float or text, got {value!r}"
                )
            found[key] = value
    return found


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = table.get(key, {})
    return inner if isinstance(inner, Mapping) else {}


def _flatten(table: Mapping[str, Any], path: Path, above: str = "") -> Iterator[tuple[str, Scalar]]:
    for name, value in table.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _flatten(value, path, f"{key}.")
        elif isinstance(value, Scalar):
            yield key, value
        else:
            raise ConfigError(
                f"{path}: tool.flwr.app.config.{key} must be a bool, int, float or text, "
                f"got {value!r}"
            )


def _override(override: str, config: Mapping[str, Scalar]) -> tuple[str, Scalar]:
    key, equals, text = (part.strip() for part in override.partition("="))
    if not equals or not text:
        raise ConfigError(f"--set {override}: has no value; write --set key=value")
    if key not in config:
        close = get_close_matches(key, config, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(config) or 'none'}"
        raise ConfigError(f"--set {override}: the app's config has no key {key!r}; {hint}")
    value = _value(text)
    kind = type(config[key])
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(f"--set {override}: {key} must be of type {kind.__name__}, got {value!r}")
    return key, value


def _value(text: str) -> Any:
    """Return a TOML value; text that is not TOML is returned as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
