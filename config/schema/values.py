"""A settings value: its type and bounds, and the words in which an error says them."""

from __future__ import annotations

import math
import reprlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from ...errors import ConfigError
from .installed import installed_as, installed_in
from .rules import check_rules, rules_of
from .settings import Given, KeyRule, Settings, hints_of, obstacle, refuse, rule_of, section_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["build", "convert"]

S = TypeVar("S", bound="DataclassInstance")


def build(section: type[S], given: Settings, where: str = "settings", prefix: str = "") -> S:
    """Return the section with what was given, and defaults for the rest; `where` is what an error
    names if none of its keys was given.

    Raises:
        ConfigError: a value has the wrong type, is out of bounds, or means nothing beside its
            neighbours; or the section breaks one of its own rules.
    """
    hints = hints_of(section)
    values: dict[str, Any] = {}
    for entry in fields(section):
        key, kind = f"{prefix}{entry.name}", hints[entry.name]
        inner = section_of(kind)
        if inner is not None:
            named = any(name == key or name.startswith(f"{key}.") for name in given)
            wanted = named or inner is kind
            values[entry.name] = build(inner, given, where, f"{key}.") if wanted else None
        elif key in given:
            values[entry.name] = convert(key, given[key], kind, rule_of(entry, kind))
    made = section(**values)
    _refuse_idle(made, given, prefix)
    check_rules(rules_of(section), made, given, where, prefix=prefix)
    return made


def _refuse_idle(made: DataclassInstance, given: Settings, prefix: str) -> None:
    neighbours = {entry.name: getattr(made, entry.name) for entry in fields(made)}
    for entry in fields(made):
        key, rule = f"{prefix}{entry.name}", rule_of(entry, None)
        other = obstacle(rule, neighbours)
        if key not in given or other is None:
            continue
        values, now = rule.only[other], neighbours[other]
        condition = f"is {_listed(values)}" if values else "is set"
        but = f"it is {_shown(now)}" if now is not None else "it is not"
        refuse(
            given[key].where,
            key,
            f"is only for when {prefix}{other} {condition}, and {but}; "
            f"remove {entry.name} or {'change' if values else 'set'} {other}",
        )


def convert(key: str, given: Given, kind: Any, rule: KeyRule) -> Any:
    """Return a value in its setting's type.

    Raises:
        ConfigError: it has another type, or is out of bounds.
    """
    kinds = tuple(k for k in _members(kind) if k is not NoneType)
    value = _parse(given.value, kinds) if given.textual else given.value
    if float in kinds and int not in kinds and type(value) is int:
        value = float(value) if abs(value) < 1 << 1000 else math.inf
    if _is_free(kind):
        return _convert_free(key, given.where, kind, value)
    lists = [k for k in kinds if _origin_class(k) is tuple]
    if lists and isinstance(value, list):
        value = tuple(value)
        fits = all(type(item) is get_args(lists[0])[0] and item != "" for item in value)
    else:
        fits = type(value) in kinds and value != ""
    if type(value) is float and not math.isfinite(value):
        fits = False
    if fits and rule.choices:
        value = _chosen(key, given.where, value, rule)
    elif not fits or not _within(value, rule):
        refuse(given.where, key, f"must be {_wanted(kinds, rule)}, got {_shown(value)}")
    return value


def _convert_free(key: str, where: str, kind: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        refuse(where, key, f"must be a table, [{key}], got {_shown(value)}")
    if get_args(kind)[1] is str:
        for name, item in value.items():
            if not isinstance(item, str) or not item:
                refuse(where, f"{key}.{name}", f"must be a text, got {_shown(item)}")
    return dict(value)


def _members(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Literal:
        return (str,)
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _is_free(kind: Any) -> bool:
    return issubclass(_origin_class(kind), Mapping)


def _origin_class(kind: Any) -> type[Any]:
    origin = get_origin(kind)
    return origin if isinstance(origin, type) else object


def _parse(text: str, kinds: tuple[Any, ...]) -> Any:
    if kinds == (str,):
        return text
    if kinds == (bool,):
        text = text.lower()
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _chosen(key: str, where: str, value: Any, rule: KeyRule) -> Any:
    """Return a value that is one of the choices, or what an installed name stands for."""
    if rule.or_like is not None and rule.or_like[1].fullmatch(value):
        return value
    if value in rule.unavailable:
        refuse(where, key, f"= {_shown(value)} {rule.unavailable[value]}")
    if value in rule.choices:
        return value
    try:
        reference = installed_as(str(value), rule.installed) if rule.installed else None
    except ConfigError as error:
        refuse(where, key, f"= {error}")
    if reference is None:
        known = [str(choice) for choice in rule.choices]
        if rule.installed:
            known += [each.name for each in installed_in(rule.installed)]
        alike = get_close_matches(str(value), known, n=1)
        hint = f'; did you mean "{alike[0]}"?' if alike else ""
        form = f", or as {rule.or_like[0]}" if rule.or_like else ""
        refuse(where, key, f"must be {_listed(rule.choices)}{form}, got {_shown(value)}{hint}")
    return reference


def _within(value: Any, rule: KeyRule) -> bool:
    if not isinstance(value, int | float):
        return True
    return (
        (rule.at_least is None or value >= rule.at_least)
        and (rule.above is None or value > rule.above)
        and (rule.at_most is None or value <= rule.at_most)
        and (rule.below is None or value < rule.below)
    )


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _wanted(kinds: tuple[Any, ...], rule: KeyRule) -> str:
    if rule.choices:
        return _listed(rule.choices)
    if float in kinds and int in kinds:
        kinds = (float,)
    name = " or ".join(_NAMES[kind] if kind in _NAMES else _list_of(kind) for kind in kinds)
    signs = (">=", rule.at_least), (">", rule.above), ("<=", rule.at_most), ("<", rule.below)
    bounds = [f"{sign} {bound}" for sign, bound in signs if bound is not None]
    return " ".join([name, " and ".join(bounds)]).strip()


def _list_of(kind: Any) -> str:
    return "a list of whole numbers" if get_args(kind)[0] is int else "a list of texts"


def _listed(values: Sequence[Any]) -> str:
    return " or ".join(_shown(value) for value in values)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.isprintable() and len(value) < 60:
        return f'"{value}"'
    return reprlib.repr(value)
