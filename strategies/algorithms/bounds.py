"""Checks of an argument against its bounds, with the sentence that says what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from ...errors import ConfigError

__all__ = ["Bounds", "require_choice", "require_number", "require_whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of a number that a builder takes: `mu: Annotated[float, Bounds(at_least=0)]`."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def check(self, name: str, value: object) -> None:
        """Check an argument.

        Raises:
            ConfigError: it is no finite number, or out of the bounds.
        """
        require_number(
            name,
            value,
            above=self.above,
            at_least=self.at_least,
            below=self.below,
            at_most=self.at_most,
        )


def require_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> float:
    """Return `value` as a float if it is a finite number within the bounds.

    Raises:
        ConfigError: it is not; the text names the argument, the bound and the value.
    """
    largest = sys.float_info.max
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -largest <= value <= largest  # NaN is refused here too
    ):
        raise ConfigError(f"{name} must be a finite number, got {value!r:.80}")
    if above is not None and not value > above:
        raise ConfigError(f"{name} must be > {above:g}, got {value!r:.80}")
    if at_least is not None and not value >= at_least:
        raise ConfigError(f"{name} must be >= {at_least:g}, got {value!r:.80}")
    if below is not None and not value < below:
        raise ConfigError(f"{name} must be < {below:g}, got {value!r:.80}")
    if at_most is not None and not value <= at_most:
        raise ConfigError(f"{name} must be <= {at_most:g}, got {value!r:.80}")
    return float(value)


def require_whole(name: str, value: object, *, at_least: int, at_most: int | None = None) -> int:
    """Return `value` if it is a whole number within the bounds.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ConfigError(f"{name} must be a whole number >= {at_least}, got {value!r:.80}")
    if at_most is not None and value > at_most:
        raise ConfigError(f"{name} must be a whole number <= {at_most}, got {value!r:.80}")
    return value


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Check that `value` is one of the names.

    Raises:
        ConfigError: it is not.
    """
    names = sorted(choices)
    if value not in names:
        raise ConfigError(f"{name} must be one of {', '.join(names)}, got {value!r:.80}")
