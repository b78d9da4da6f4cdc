"""What is refused beyond a single value's type and bounds, as declared rules.

A section declares the rules about itself in its class, as `rules`; config/rules/ declares those that
span sections. `build` and `check_rules` apply them, and docs/configuration.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .settings import Given, Settings, refuse

__all__ = ["Rule", "breaches", "check_rules", "origin_of", "rules_of"]

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Rule(Generic[S]):
    """A rule about one or several keys.

    Attributes:
        keys: settings or tables; the first is the one that is refused. A section's own rules name
            its keys without the section.
        needs: what the first key needs or excludes, as docs/configuration.md says it.
        breach: whether a section, or a whole configuration, breaks the rule; or what is found wrong,
            as a text.
        refusal: what follows the first key in the `ConfigError`: its value, what is wrong, and the
            remedy. Braces hold attributes of what was checked, or what was `found`.
    """

    keys: tuple[str, ...]
    needs: str
    breach: Callable[[S], bool | str | None]
    refusal: str = "{found}"

    def broken_by(self, checked: S) -> str | None:
        """Return the sentence of the refusal, None if the rule is kept."""
        found = self.breach(checked)
        return self.refusal.format_map(_Attributes(checked, found)) if found else None


class _Attributes(dict[str, object]):
    """The attributes of a section as a mapping, and what was found wrong."""

    def __init__(self, section: object, found: object) -> None:
        super().__init__(found=found)
        self._section = section

    def __missing__(self, name: str) -> object:
        return getattr(self._section, name)


def rules_of(section: type[Any]) -> tuple[Rule[Any], ...]:
    """Return the rules that a section's class declares."""
    return getattr(section, "rules", ())


def breaches(rules: Iterable[Rule[S]], checked: S) -> Iterator[tuple[Rule[S], str]]:
    """Yield the rules that are broken, each with its sentence."""
    for rule in rules:
        sentence = rule.broken_by(checked)
        if sentence is not None:
            yield rule, sentence


def check_rules(
    rules: Iterable[Rule[S]], checked: S, given: Settings, where: str, *, prefix: str = ""
) -> None:
    """Refuse what breaks a rule.

    Raises:
        ConfigError: names where the first of the rule's keys was set, or else `where`.
    """
    for rule, sentence in breaches(rules, checked):
        keys = [f"{prefix}{key}" for key in rule.keys]
        refuse(origin_of(given, where, *keys), keys[0], sentence)


def origin_of(given: Settings, where: str, *keys: str) -> str:
    """Return where the first of these keys, or a key of these tables, was set; if none was, where
    another key of the first one's table was. An environment variable or an option of the command
    line goes before a file."""
    found = [entry for key in keys for entry in _set_in(given, key)]
    found = found or _set_in(given, keys[0].rpartition(".")[0])
    found.sort(key=lambda entry: not entry.textual)
    return found[0].where if found else where


def _set_in(given: Settings, key: str) -> list[Given]:
    """Return what was set of a key, or of a table."""
    return [entry for name, entry in given.items() if name == key or name.startswith(f"{key}.")]
