"""The temperatures that this machine's sensors report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["hottest"]

CLASSES: Final = Path("/sys/class")
PLAUSIBLE_C: Final = (-40.0, 150.0)
"""Sensors that are not connected report what no machine has."""


def hottest(classes: Path = CLASSES) -> tuple[float, str] | None:
    """Return the highest temperature, in degrees Celsius, and the sensor's name; None without a sensor.

    Edge cases: a sensor that cannot be read, or reports what no machine has, does not count.

    Source: Linux, Documentation/ABI/testing/sysfs-class-thermal (temp, type) and sysfs-class-hwmon
        (tempN_input, name); both are in thousandths of a degree.
    """
    return max(_readings(classes), default=None)


def _readings(classes: Path) -> Iterator[tuple[float, str]]:
    sensors = [(path, "type") for path in sorted((classes / "thermal").glob("thermal_zone*/temp"))]
    sensors += [(path, "name") for path in sorted((classes / "hwmon").glob("hwmon*/temp*_input"))]
    for path, name in sensors:
        try:
            celsius = int(path.read_text()) / 1000
        except (OSError, ValueError):
            continue
        if PLAUSIBLE_C[0] < celsius < PLAUSIBLE_C[1]:
            yield celsius, _text(path.parent / name) or path.parent.name


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
