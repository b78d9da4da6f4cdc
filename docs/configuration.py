"""Write docs/configuration.md from the code: `make docs`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import Field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from meadow.config.client_config import ClientConfig
from meadow.config.rules.combinations import RULES
from meadow.config.schema.rules import Rule, rules_of
from meadow.config.schema.settings import KeyRule, rule_of, section_of
from meadow.config.schema.text import value_to_toml
from meadow.config.sections.model import Config
from meadow.config.server_config import ServerConfig

INTRODUCTION = """\
# Configuration

This page is made from the code by `make docs`; a test holds it current.

Three files say everything: an app's `meadow.toml` (what a run is), a client's `client.toml` (what
the owner of the data allows) and a server's `server.toml` (where it listens). No key has to be
said. Unknown keys, wrong types, impossible values and keys that mean nothing beside others are
errors that name the file, the key and what would be right; the command then ends with exit code 2.

The last column says what a key needs and excludes beyond its own values. "with" names keys that the
same rule is about; "see" those whose rules are about this one too.
"""

MEADOW = """
## meadow.toml

It lies in the app's folder. Values come from the defaults, then the file, then environment
variables, then `--set`, the later over the earlier:

    MEADOW_RUN__ROUNDS=5 meadow simulate my_app --set training.learning_rate=0.05

A variable is `MEADOW_`, the section and the key in capitals with two underscores between them
(`MEADOW_RUN__EARLY_STOPPING__PATIENCE`); an empty one says nothing. A run's folder holds the
resolved file: every key that means something, defaults included.

Where `app.task` names a function, the free keys under `[app]` are its keyword arguments, checked by
its signature; `--set` overrides them too, and `meadow sweep` varies them. Real sites get them with
the run, and call the function of the app that their owner has installed.

    [app]
    task = "task:make_task"
    layers = [64, 32]        # def make_task(layers: list[int], dropout: float = 0.0) -> meadow.Task

    meadow sweep my_app --set 'app.layers=[64,32],[128]' --set app.dropout=0,0.5
"""

CLIENT = """
## client.toml

It lies in the client's folder and is its owner's: nothing that a server sends and no environment
variable changes it.
"""

SERVER = """
## server.toml

It lies in the server's folder; `meadow server init` makes it. Keys in no section come first.
"""

FREE = "| any other key | | | handed to the app's `client_data` as `Site.config` | |"
NAMES = {int: "whole number", float: "number", bool: "true or false", str: "text"}


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    for text, schema in ((MEADOW, Config), (CLIENT, ClientConfig), (SERVER, ServerConfig)):
        rules = [*own_rules(schema, ""), *(RULES if schema is Config else ())]
        parts += [text, *tables(schema, "", rules)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def own_rules(schema: type[Any], prefix: str) -> Iterator[Rule[Any]]:
    """Yield the rules that a section and those in it declare about themselves, with whole keys."""
    for rule in rules_of(schema):
        yield replace(rule, keys=tuple(f"{prefix}{key}" for key in rule.keys))
    hints = get_type_hints(schema)
    for entry in fields(schema):
        inner = section_of(hints[entry.name])
        if inner is not None:
            yield from own_rules(inner, f"{prefix}{entry.name}.")


def tables(schema: type[Any], prefix: str, rules: Sequence[Rule[Any]]) -> Iterator[str]:
    """Yield a section's heading and table, and those of the sections in it."""
    hints = get_type_hints(schema)
    dot = f"{prefix}." if prefix else ""
    rows = [
        row(entry, rule_of(entry, hints[entry.name]), hints[entry.name], dot, rules)
        for entry in fields(schema)
        if "rule" in entry.metadata
    ]
    if prefix and rows:
        about = inspect.cleandoc(schema.__doc__ or "").partition(": ")[2]
        said = said_of(prefix, rules)
        yield f"### [{prefix}]\n\n{about[:1].upper()}{about[1:]}"
        if said:
            yield f"The table itself: {said}."
    if rows:
        head = ["| key | value | default | meaning | needs and excludes |", "|---|---|---|---|---|"]
        yield "\n".join([*head, *rows, *([FREE] if prefix == "data" else [])])
    for entry in fields(schema):
        inner = section_of(hints[entry.name])
        if inner is not None:
            yield from tables(inner, f"{dot}{entry.name}", rules)


def row(entry: Field[Any], rule: KeyRule, kind: Any, dot: str, rules: Sequence[Rule[Any]]) -> str:
    """Return one key's line of a table."""
    default = entry.default
    shown = "" if default is None or default == () else f"`{value_to_toml(default)}`"
    only = [
        f"`{key}` is {' or '.join(f'`{value_to_toml(v)}`' for v in values)}"
        if values
        else f"`{key}` is set"
        for key, values in rule.only.items()
    ]
    said = [f"only if {' and '.join(only)}"] if only else []
    said += [text] if (text := said_of(f"{dot}{entry.name}", rules)) else []
    return (
        f"| `{entry.name}` | {wanted(kind, rule)} | {shown} | {rule.meaning} | {'; '.join(said)} |"
    )


def said_of(key: str, rules: Sequence[Rule[Any]]) -> str:
    """Return what the rules about a key or a table say of it."""
    said = []
    for rule in rules:
        if rule.keys[0] == key:
            others = [
                f"`{other}`" for other in rule.keys[1:] if other.split(".")[-1] not in rule.needs
            ]
            said.append(rule.needs + (f" (with {', '.join(others)})" if others else ""))
    firsts = {f"`{rule.keys[0]}`": None for rule in rules if key in rule.keys[1:]}
    return "; ".join([*said, *([f"see {', '.join(firsts)}"] if firsts else [])])


def wanted(kind: Any, rule: KeyRule) -> str:
    """Return what a key's value may be."""
    if rule.choices:
        more = [f'`"{rule.or_like[0]}"`'] if rule.or_like else []
        return ", ".join([*(f"`{value_to_toml(choice)}`" for choice in rule.choices), *more])
    members = {kind} if get_origin(kind) in (tuple, dict, Literal) else {*get_args(kind)} or {kind}
    if "Mapping" in str(get_origin(kind)):
        return "table of texts"
    members -= {NoneType}
    said = sorted({NAMES.get(each) or f"list of {NAMES[get_args(each)[0]]}s" for each in members})
    name = NAMES[float] if float in members else " or ".join(said)
    signs = (("≥", rule.at_least), (">", rule.above), ("≤", rule.at_most), ("<", rule.below))
    return ", ".join([name, *(f"{sign} {bound}" for sign, bound in signs if bound is not None)])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
